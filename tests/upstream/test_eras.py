"""Servers on the official SDK of one era or of both, each reached by the era that it has."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal

import anyio
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from mcproxy.call.calls import Call, Complete, Failed, InputRequired
from mcproxy.call.clients import ListChanged
from mcproxy.call.upstreams import Connected, UpstreamChanged
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, Era
from mcproxy.protocol.jsonrpc import Message, Request, raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings import UpstreamSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.context import DOUBTFUL_AFTER, EraHints, LinkContext
from mcproxy.upstream.link import Receive
from mcproxy.upstream.pipe_era import over_pipe
from tests.ports import free_port
from tests.timeouts import GUARD
from tests.upstream.support import FakeClient, Running, answering, failure, request, running, tool, value
from tests.upstream.test_sdk import PATIENT, SDK, accepting, text

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parent.parent / "conformance" / "server.py"
ELICITOR = Path(__file__).parent.parent / "fakes" / "servers" / "elicitor.py"
MODERN_CHILD = Path(__file__).parent.parent / "fakes" / "servers" / "modern_child.py"
PROBES = {"server/discover", "initialize", "notifications/initialized"}
ASKABLE_RAW = {"elicitation": raw({"form": {}})}
ASKABLE: dict[str, object] = {"elicitation": {"form": {}}}


def serving(era: str) -> AbstractAsyncContextManager[Running]:
    return served(lambda port: ["-m", "tests.conformance.server", "--port", str(port), "--era", era])


@asynccontextmanager
async def served(arguments: Callable[[int], list[str]]) -> AsyncIterator[Running]:
    port = free_port()
    command = [sys.executable, *arguments(port)]
    async with await anyio.open_process(command, stdout=None, stderr=None, cwd=SERVER.parents[2]) as server:
        await accepting(port)
        spec = UpstreamSettings(name="u", prefix="u", url=f"http://127.0.0.1:{port}/mcp", timeouts=PATIENT)
        try:
            async with running(spec) as it:
                yield it
        finally:
            with suppress(ProcessLookupError):
                server.kill()


@pytest.mark.parametrize(
    ("era", "spoken"), [("modern", Era.STATELESS), ("both", Era.STATELESS), ("legacy", Era.HANDSHAKE)]
)
async def test_r58_a_server_over_http_is_spoken_to_in_the_newest_era_that_it_has(era: str, spoken: Era) -> None:
    async with serving(era) as it:
        assert text(await it.upstream(tool("test_simple_text"))).startswith("This is a simple text")
        [connected] = it.events.of(Connected)
        assert connected.identity.era is spoken


async def test_a_stateless_server_tells_asks_mirrors_and_announces() -> None:
    client = FakeClient()
    capabilities: dict[str, object] = {"elicitation": {"form": {}}}
    async with serving("modern") as it:
        assert text(await it.upstream(tool("test_tool_with_progress", client=client))) == "done"
        asked = await it.upstream(tool("test_input_required_result_elicitation", capabilities=capabilities))
        assert isinstance(asked, InputRequired)
        assert [question.method for question in asked.requests.values()] == ["elicitation/create"]
        assert text(await it.upstream(tool("test_x_mcp_header", {"region": "eu"}))) == "region=eu"
        assert isinstance(await it.upstream(request("resources/subscribe", uri="test://watched-resource")), Complete)
        await it.upstream(tool("test_trigger_tool_change"))
        await it.events.until(lambda: bool(it.events.of(UpstreamChanged)))
    assert [params["progress"] for _, params in client.told] == [0, 50, 100]
    assert {event.change for event in it.events.of(UpstreamChanged)} == {ListChanged(Kind.TOOLS)}


async def test_a_stateless_server_over_stdio_is_found() -> None:
    spec = UpstreamSettings(name="u", prefix="u", command=sys.executable, args=(str(SDK), "stdio"), timeouts=PATIENT)
    async with running(spec) as it:
        assert text(await it.upstream(tool("add", {"a": 1, "b": 2}))) == "3"
        [connected] = it.events.of(Connected)
        assert connected.identity.era is Era.STATELESS
        assert isinstance(await it.upstream(request("resources/subscribe", uri="test://a")), Complete)


async def test_r58_a_child_of_both_eras_asks_a_client_of_the_handshake_era_in_its_way() -> None:
    spec = UpstreamSettings(name="u", prefix="u", command=sys.executable, args=(str(ELICITOR),), timeouts=PATIENT)
    async with running(spec) as it:
        for _ in range(2):
            assert text(await it.upstream(greeting())) == "Hello, Ada"
        assert [event.identity.era for event in it.events.of(Connected)] == [Era.STATELESS, Era.HANDSHAKE]


async def test_r58_a_child_stays_with_the_era_of_the_client_that_came_first() -> None:
    spec = UpstreamSettings(name="u", prefix="u", command=sys.executable, args=(str(ELICITOR),), timeouts=PATIENT)
    async with running(spec) as it:
        await it.upstream(of_stateless_era(tool("greet")))
        await it.upstream(greeting())
        assert [event.identity.era for event in it.events.of(Connected)] == [Era.STATELESS]


@pytest.mark.parametrize("manner", ["deaf", "refusing"])
async def test_a_stateless_child_survives_a_first_caller_of_the_handshake_era(manner: str) -> None:
    async with running(modern_child(manner, probe=0.2)) as it:
        for _ in range(2):
            assert value(await it.upstream(asking(tool("echo", {"n": 1})))) == {"n": 1}
        assert value(await it.upstream(of_stateless_era(tool("echo", {"n": 2})))) == {"n": 2}
        assert it.upstream.status.identity is not None
        assert it.upstream.status.identity.era is Era.STATELESS


@pytest.mark.parametrize("first", ["stateless", "handshake", "subscribing"])
async def test_a_child_of_both_eras_that_was_called_is_not_started_again_for_another_caller(first: str) -> None:
    async with running(modern_child("both")) as it:
        match first:
            case "stateless":
                await it.upstream(of_stateless_era(tool("pid")))
            case "handshake":
                await it.upstream(tool("pid"))
            case "subscribing":
                await it.upstream(request("resources/subscribe", uri="test://a"))
        await it.upstream(asking(tool("pid")))
        assert [event.identity.era for event in it.events.of(Connected)] == [Era.STATELESS]


async def test_a_list_that_the_gateway_fetched_is_no_call() -> None:
    async with running(modern_child("both")) as it:
        await it.upstream(request("tools/list"))
        await it.upstream(asking(tool("pid")))
        assert [event.identity.era for event in it.events.of(Connected)] == [Era.STATELESS, Era.HANDSHAKE]


@pytest.mark.parametrize(
    ("manner", "opening"), [("legacy", ["initialize", "notifications/initialized"]), ("plain", ["server/discover"])]
)
async def test_a_reconnect_goes_by_the_era_that_it_knows(manner: str, opening: list[str]) -> None:
    async with running(modern_child(manner)) as it:
        await it.upstream(tool("crash"))
        methods = [message["method"] for message in value(await it.upstream(tool("heard")))]
        assert [method for method in methods if method in PROBES] == opening


async def test_a_server_found_stateless_is_not_offered_the_handshake_because_it_is_slow_to_start() -> None:
    for expected, sent in ((None, {"server/discover", "initialize"}), (Era.STATELESS, {"server/discover"})):
        pipe = SilentPipe()
        spec = modern_child(probe=0, connect=3600)
        context = LinkContext(spec, Metrics(CollectorRegistry()), lambda change: None, hints=EraHints(expected))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(linked_over, pipe, context)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert set(pipe.sent) == sent


@pytest.mark.parametrize("refusing", ["tardy", "tardier"])
async def test_what_a_child_that_is_slow_to_start_says_of_the_other_era_is_no_answer_to_a_call(refusing: str) -> None:
    async with running(modern_child("slow", refusing, probe=0.2)) as it:
        assert value(await it.upstream(of_stateless_era(tool("echo", {"n": 1})))) == {"n": 1}
        assert [event.identity.era for event in it.events.of(Connected)] == [Era.STATELESS]


@pytest.mark.parametrize("era", ["auto", "modern", "legacy"])
async def test_a_child_that_writes_what_it_reads_is_told_by_that(
    era: Literal["auto", "modern", "legacy"],
) -> None:
    spec = UpstreamSettings(name="u", prefix="u", command="cat", era=era, timeouts=PATIENT)
    async with running(spec) as it:
        assert "the server sent our own message back" in failure(await it.upstream(tool("add"))).error.message


def test_an_era_is_doubted_after_attempts_that_fail() -> None:
    hints = EraHints(Era.HANDSHAKE)
    for _ in range(DOUBTFUL_AFTER - 1):
        hints.note_failure()
    assert hints.expected is Era.HANDSHAKE
    hints.note_failure()
    assert hints.expected is None


async def test_r58_a_server_of_both_eras_over_http_meets_each_client_in_the_era_of_the_client() -> None:
    async with served(lambda port: [str(ELICITOR), str(port)]) as it:
        assert text(await it.upstream(greeting())) == "Hello, Ada"
        assert isinstance(await it.upstream(of_stateless_era(tool("greet"))), Complete | Failed)
        assert text(await it.upstream(greeting())) == "Hello, Ada"
        assert [event.identity.era for event in it.events.of(Connected)] == [Era.STATELESS]


async def test_a_server_of_the_stateless_era_alone_is_offered_the_handshake_once() -> None:
    client = answering({"action": "accept", "content": {"name": "Ada"}})
    call = tool("test_input_required_result_elicitation", client=client, capabilities=ASKABLE)
    call = replace(call, caller=replace(call.caller, version=LATEST_HANDSHAKE))
    async with serving("modern") as it:
        for _ in range(2):
            assert isinstance(await it.upstream(call), InputRequired)
        assert [event.identity.era for event in it.events.of(Connected)] == [Era.STATELESS]


def greeting() -> Call:
    client = answering({"action": "accept", "content": {"name": "Ada"}})
    call = tool("greet", client=client, capabilities=ASKABLE)
    return replace(call, caller=replace(call.caller, version=LATEST_HANDSHAKE))


def of_stateless_era(call: Call) -> Call:
    return replace(call, caller=replace(call.caller, version=LATEST))


def asking(call: Call) -> Call:
    """The call of a client of the handshake era that can be asked."""
    return replace(call, caller=replace(call.caller, version=LATEST_HANDSHAKE, capabilities=ASKABLE_RAW))


def modern_child(*manners: str, probe: float = GUARD, connect: float = GUARD) -> UpstreamSettings:
    timeouts = PATIENT.model_copy(update={"probe": probe, "connect": connect, "shutdown": 0.3})
    args = (str(MODERN_CHILD), *manners)
    return UpstreamSettings(name="kid", prefix="kid", command=sys.executable, args=args, timeouts=timeouts)


async def linked_over(pipe: SilentPipe, context: LinkContext) -> None:
    async with AsyncExitStack() as stack:
        await over_pipe(lambda: nullcontext(pipe), context, stack)


class SilentPipe:
    """A `link.Duplex` whose server says nothing."""

    heard = 0

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, message: Message) -> None:
        assert isinstance(message, Request)
        self.sent.append(message.method)

    async def read(self, receive: Receive) -> str:
        await anyio.sleep_forever()
        raise AssertionError
