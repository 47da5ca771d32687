"""A child that hangs is started anew, and one that is busy is left alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from mcproxy.call.errors import Reason
from mcproxy.pending_requests import PeerGone, RequestTimeout, Timeouts
from mcproxy.protocol.jsonrpc import Message, Request, encode
from mcproxy.settings import UpstreamSettings, UpstreamTimeouts
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import Link, Receive, task_group
from mcproxy.upstream.pipe import Liveness
from mcproxy.upstream.pipe_era import handshake_over_pipe, over_pipe
from tests.timeouts import GUARD
from tests.upstream.support import failure, request, tool

pytestmark = pytest.mark.anyio

SHORT = UpstreamTimeouts(idle=0.01, connect=0.02)
OPENING = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}},
    "server/discover": {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}},
}


@dataclass
class Pipe:
    """A `link.Duplex` whose server answers the first request that opens its era, and then hangs."""

    opening: str
    heard: int = 0
    sent: list[str] = field(default_factory=list)
    _receive: Receive | None = None
    _reading: anyio.Event = field(default_factory=anyio.Event)

    async def send(self, message: Message) -> None:
        if not isinstance(message, Request):
            return
        self.sent.append(message.method)
        if message.method == self.opening and self.sent.count(self.opening) == 1:
            await self._reading.wait()
            assert self._receive is not None
            self.heard += 1
            id = json.loads(encode(message))["id"]
            taken = self._receive(json.dumps({"jsonrpc": "2.0", "id": id, "result": OPENING[self.opening]}).encode())
            if taken is not None:
                await taken

    async def read(self, receive: Receive) -> str:
        self._receive = receive
        self._reading.set()
        await anyio.sleep_forever()
        raise AssertionError


@asynccontextmanager
async def linked(pipe: Pipe, context: LinkContext) -> AsyncIterator[Link]:
    async with AsyncExitStack() as stack:
        if context.spec.era == "legacy":
            yield await stack.enter_async_context(handshake_over_pipe(pipe, context))
        else:
            yield await over_pipe(lambda: nullcontext(pipe), context, stack)


@dataclass
class Child:
    """The child that is doubted: `answer` is what it does when it is asked."""

    answer: Callable[[], Awaitable[None]]
    heard: int = 0
    asked: int = 0
    tasks: TaskGroup = field(init=False)
    silent: bool = False
    ended: list[str] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)

    async def send(self, message: Message) -> None:
        raise AssertionError(message)

    async def read(self, receive: Receive) -> str:
        raise AssertionError(receive)

    async def ask(self, timeouts: Timeouts) -> None:
        self.asked += 1
        self.tell()
        await self.answer()

    def may_be_silent(self) -> bool:
        return self.silent

    def disconnect(self, reason: str) -> None:
        self.ended.append(reason)
        self.tell()

    def tell(self) -> None:
        self.news.set()
        self.news = anyio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self.news.wait()


async def silent() -> None:
    raise RequestTimeout(0.02, "idle")


@asynccontextmanager
async def doubted(child: Child) -> AsyncIterator[Liveness]:
    with anyio.fail_after(GUARD):
        async with task_group() as child.tasks:
            liveness = Liveness(child, lambda: SHORT, child)
            liveness.doubt()
            yield liveness
            liveness.close()


async def asked_again(child: Child, liveness: Liveness) -> None:
    """Returns once a further doubt has the child asked: the one before is over by then."""
    asked = child.asked
    while child.asked == asked:
        liveness.doubt()
        await anyio.lowlevel.checkpoint()


async def test_a_child_that_says_nothing_and_answers_no_question_is_ended() -> None:
    child = Child(silent)
    async with doubted(child):
        await child.until(lambda: bool(child.ended))
    assert child.asked == 1
    assert child.ended[0].startswith("the child hangs: it said nothing for ")


async def test_a_child_that_answers_is_left_alone() -> None:
    child = Child(anyio.lowlevel.checkpoint)

    async def answer() -> None:
        child.heard += 1

    child.answer = answer
    async with doubted(child) as liveness:
        await child.until(lambda: child.asked == 1)
        await asked_again(child, liveness)
    assert child.ended == []


async def test_a_child_that_says_anything_is_left_alone_though_it_does_not_answer() -> None:
    child = Child(silent)

    async def log() -> None:
        child.heard += 1
        await silent()

    child.answer = log
    async with doubted(child) as liveness:
        await child.until(lambda: child.asked == 1)
        await asked_again(child, liveness)
    assert child.ended == []


async def test_a_child_that_may_be_silent_is_not_doubted() -> None:
    child = Child(silent, silent=True)
    async with doubted(child) as liveness:
        await anyio.lowlevel.checkpoint()
        child.silent = False
        await asked_again(child, liveness)
        assert child.asked == 1


async def test_a_child_whose_connection_ends_meanwhile_is_not_ended_again() -> None:
    child = Child(silent)

    async def die() -> None:
        raise PeerGone("the child exited with status 1")

    child.answer = die
    async with doubted(child) as liveness:
        await child.until(lambda: child.asked == 1)
        await asked_again(child, liveness)
    assert child.ended == []


async def test_a_doubt_ends_with_the_link() -> None:
    child, later = Child(silent), Child(silent)
    async with doubted(child) as liveness:
        pass
    liveness.doubt()
    async with doubted(later):
        await later.until(lambda: bool(later.ended))
    assert child.asked == 0


@pytest.mark.parametrize(("era", "question"), [("legacy", "ping"), ("modern", "server/discover")])
async def test_a_child_that_hangs_is_ended_after_a_call_that_it_did_not_answer(era: str, question: str) -> None:
    pipe = Pipe("initialize" if era == "legacy" else "server/discover")
    spec = UpstreamSettings.model_validate(
        {"name": "u", "prefix": "u", "command": "fake", "era": era, "timeouts": {"idle": 0.01, "connect": 0.02}}
    )
    with anyio.fail_after(GUARD):
        async with linked(pipe, LinkContext(spec, Metrics(), print)) as link:
            assert failure(await link(tool("t"))).reason is Reason.TIMEOUT
            assert "the child hangs" in await link.wait_closed()
    assert pipe.sent[-2:] == ["tools/call", question]


async def test_a_child_from_which_a_call_awaits_the_result_of_a_task_is_not_doubted() -> None:
    pipe = Pipe("initialize")
    spec = UpstreamSettings.model_validate(
        {"name": "u", "prefix": "u", "command": "fake", "era": "legacy", "timeouts": {"idle": 0.01, "connect": 0.02}}
    )
    later = Child(silent)

    async def awaiting(link: Link) -> None:
        await link(request("tasks/result", taskId="1"))

    with anyio.fail_after(GUARD):
        async with linked(pipe, LinkContext(spec, Metrics(), print)) as link, task_group() as tasks:
            tasks.start_soon(awaiting, link)
            await anyio.wait_all_tasks_blocked()
            assert failure(await link(tool("t"))).reason is Reason.TIMEOUT
            async with doubted(later):
                await later.until(lambda: bool(later.ended))
            assert not link.is_closed
    assert pipe.sent[-2:] == ["tasks/result", "tools/call"]
