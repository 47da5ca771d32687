"""What the tests of this room share: calls, a client that records, and a supervisor that runs for a while."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import Change, InputRequest, Listener
from mcproxy.call.errors import McpError
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.call.upstreams import ServerIdentity, UpstreamEvent
from mcproxy.pending_requests import Send
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, ErrorResponse, Params, first_level, raw
from mcproxy.protocol.methods import row_of
from mcproxy.settings import Proxy, UpstreamSettings, UpstreamTimeouts
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.connect import connected
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.conversation import Conversation
from mcproxy.upstream.handshake.dialect import HandshakeDialect
from mcproxy.upstream.link import Connect
from mcproxy.upstream.supervisor import ConnectionSlots, Supervisor
from tests.timeouts import GUARD

CHILD = Path(__file__).parent.parent / "fakes" / "servers" / "child.py"
DONE = Complete(first_level({"structuredContent": {"value": "done"}}))
QUICK = UpstreamTimeouts(connect=GUARD, idle=GUARD, total=GUARD, shutdown=0.3)


def child(*manners: str, **settings: Any) -> UpstreamSettings:
    """The settings of a fake server in a child process."""
    settings = {"timeouts": QUICK, "era": "legacy", **settings}
    return UpstreamSettings(name="kid", prefix="kid", command=sys.executable, args=(str(CHILD), *manners), **settings)


@dataclass
class FakeClient:
    """A `call.clients.Client`: answers with `answer`, or refuses where there is none, once `may_answer` is set."""

    answer: object | None = None
    may_answer: anyio.Event = field(default_factory=anyio.Event)
    asked: anyio.Event = field(default_factory=anyio.Event)
    questions: list[InputRequest] = field(default_factory=list)
    told: list[tuple[str, Any]] = field(default_factory=list)
    withdrawn: int = 0

    def notify(self, method: str, params: Params) -> None:
        self.told.append((method, decoded(raw(params))))

    async def ask(self, request: InputRequest) -> Raw:
        self.questions.append(request)
        self.asked.set()
        try:
            await self.may_answer.wait()
        except anyio.get_cancelled_exc_class():
            self.withdrawn += 1
            raise
        if self.answer is None:
            raise McpError(INVALID_REQUEST, "the client did not declare this capability", {"kept": True})
        return raw(self.answer)


UNREADABLE = {
    "a cut end": b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a"}',
    "deep nesting": b'{"jsonrpc":"2.0","id":ID,"result":{"content":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "an id at the end": b'{"result":{"method":"x","value":0x1},"jsonrpc":"2.0","id":ID}',
}
"""Answers to a request ID that are nearly JSON."""


def answering(value: object) -> FakeClient:
    client = FakeClient(value)
    client.may_answer.set()
    return client


def refusing() -> FakeClient:
    client = FakeClient()
    client.may_answer.set()
    return client


@dataclass(eq=False)
class FakeListener:
    """Satisfies `call.clients.Listener`: answers what is asked between calls."""

    caller: Caller
    answer: object
    questions: list[InputRequest] = field(default_factory=list)
    told: list[Change] = field(default_factory=list)

    def set_log_level(self, level: str) -> None: ...

    def signal(self, change: Change) -> None:
        self.told.append(change)

    async def ask(self, request: InputRequest) -> Raw:
        self.questions.append(request)
        return raw(self.answer)


def tool(
    name: str,
    arguments: object = None,
    *,
    client: FakeClient | None = None,
    session: str | None = None,
    capabilities: dict[str, object] | None = None,
    listener: Listener | None = None,
) -> Call:
    declared = {key: raw(value) for key, value in (capabilities or {}).items()}
    caller = Caller(ANONYMOUS, "2025-11-25", declared, session=session)
    params = {"name": raw(name), "arguments": raw({} if arguments is None else arguments)}
    if listener is None and session is not None:
        listener = FakeListener(caller, None)
    return Call(row_of("tools/call"), params, caller, client or FakeClient(), listener)


def request(method: str, client: FakeClient | None = None, **params: object) -> Call:
    raw_params = {key: raw(value) for key, value in params.items()}
    return Call(row_of(method), raw_params, Caller(ANONYMOUS, "2025-11-25"), client or FakeClient())


def decoded(data: Raw | bytes) -> Any:
    return msgspec.json.decode(data)


def value(outcome: Outcome) -> Any:
    """What a fake tool answered."""
    assert isinstance(outcome, Complete), outcome
    return decoded(raw(outcome.result))["structuredContent"]["value"]


def failure(outcome: Outcome) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome


@dataclass
class FakeLink:
    """Satisfies `link.Link`. `outcomes` are raised or returned in turn, then DONE; `lost` ends it."""

    outcomes: list[Outcome | Exception] = field(default_factory=list)
    identity: ServerIdentity = field(default_factory=lambda: ServerIdentity(Era.HANDSHAKE, "2025-11-25", {}))
    lost: anyio.Event = field(default_factory=anyio.Event)
    hold: anyio.Event | None = None
    bug: anyio.Event = field(default_factory=anyio.Event)
    """Makes `fail_with_bug` raise."""
    calls: int = 0
    sent: list[Call] = field(default_factory=list)

    @property
    def is_closed(self) -> bool:
        return self.lost.is_set()

    async def __call__(self, call: Call) -> Outcome:
        self.calls += 1
        self.sent.append(call)
        if self.hold is not None:
            await self.hold.wait()
        outcome = self.outcomes.pop(0) if self.outcomes else DONE
        if isinstance(outcome, Exception):
            self.lost.set()
            raise outcome
        return outcome

    async def wait_closed(self) -> str:
        await self.lost.wait()
        return "lost"

    async def fail_with_bug(self) -> None:
        await self.bug.wait()
        raise ZeroDivisionError


@dataclass
class FakeTransport:
    """Satisfies `conversation.Transport`; what arrives a test gives to the conversation itself."""

    send: Send
    carries_exchanges: bool = False

    def attach(self, conversation: Conversation) -> None: ...

    async def receive(self) -> None: ...

    def check(self, error: ErrorResponse) -> None: ...

    def note_unanswered(self) -> None: ...

    async def close(self, *, politely: bool) -> None: ...


def shaking_hands(context: LinkContext, tasks: TaskGroup, send: Send) -> Conversation:
    """A conversation of the handshake era, which is not open yet."""
    return Conversation(context, tasks, HandshakeDialect(context), FakeTransport(send))


class Events:
    """Records what a supervisor publishes, and lets a test wait for it."""

    def __init__(self) -> None:
        self.all: list[UpstreamEvent] = []
        self._more = anyio.Event()

    def __call__(self, event: UpstreamEvent) -> None:
        self.all.append(event)
        self._more.set()
        self._more = anyio.Event()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.all if isinstance(event, kind)]

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._more.wait()


@dataclass
class Running:
    upstream: Supervisor
    events: Events
    metrics: Metrics
    stop: Callable[[], None]

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def running(
    spec: UpstreamSettings,
    *,
    connect: Connect = connected,
    delays: Callable[[int], float] = lambda _: 0.01,
    slots: ConnectionSlots | None = None,
    gateway_id: str | None = None,
) -> AsyncIterator[Running]:
    events, metrics = Events(), Metrics()
    upstream = Supervisor(
        spec, Proxy(), events, metrics, connect=connect, delays=delays, slots=slots, gateway_id=gateway_id
    )
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()
            tasks.start_soon(_run, upstream, scope)
            try:
                yield Running(upstream, events, metrics, scope.cancel)
            finally:
                scope.cancel()


async def _run(upstream: Supervisor, scope: anyio.CancelScope) -> None:
    with scope:
        await upstream.run()
