"""A server of resources whose every answer the test lets go, the clients that read it, and the world around a cache.

Values carry their version and whom they were given to, so that a test sees what came from where.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from mcproxy import settings
from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import InputRequest, Listener, ResourceUpdated
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.call.identity import Caller, LinkOwner, Principal
from mcproxy.call.upstreams import (
    Connected,
    Disconnected,
    LinkState,
    PushChannel,
    ServerIdentity,
    UpstreamChanged,
    UpstreamStatus,
)
from mcproxy.gateway.cache.read_cache import ReadCache
from mcproxy.gateway.listings.keys import ResourceKey
from mcproxy.protocol.eras import LATEST, Era
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, ErrorObject, Params, first_level, raw
from mcproxy.protocol.methods import row_of
from mcproxy.telemetry.metrics import Metrics

NAME = "files"
DOWN = Failed(ErrorObject(INTERNAL_ERROR, "upstream files unavailable"), Party.UPSTREAM, Reason.UNAVAILABLE)


@dataclass(eq=False)
class Reader:
    """A client during one read."""

    principal: str = "alice"
    answers: dict[str, object] | None = None
    notified: list[tuple[str, Params]] = field(default_factory=list)
    asked: list[InputRequest] = field(default_factory=list)

    def notify(self, method: str, params: Params) -> None:
        self.notified.append((method, params))

    async def ask(self, request: InputRequest) -> Raw:
        self.asked.append(request)
        return raw(self.answers)


def read(
    uri: object, reader: Reader | None = None, *, session: str | None = None, extra: Mapping[str, object] | None = None
) -> Call:
    reader = reader or Reader()
    caller = Caller(Principal(reader.principal), LATEST, session=session)
    return Call(
        row_of("resources/read"),
        {key: raw(value) for key, value in {"uri": uri, **(extra or {})}.items()},
        caller,
        reader,
    )


def tool(name: str) -> Call:
    return Call(row_of("tools/call"), {"name": raw(name)}, Caller(Principal("alice"), LATEST), Reader())


def members(outcome: Outcome) -> dict[str, object]:
    assert isinstance(outcome, Complete), outcome
    decoded: dict[str, object] = msgspec.json.decode(raw(outcome.result))
    return decoded


def text(outcome: Outcome) -> str:
    assert isinstance(outcome, Complete), outcome
    return str(msgspec.json.decode(raw(outcome.result))["contents"][0]["text"])


@dataclass(eq=False)
class Arrived:
    """A read that reached the server. What it says is fixed when the test says so, and given when it lets go."""

    call: Call
    uri: str
    outcome: Outcome | None = None
    gate: anyio.Event = field(default_factory=anyio.Event)

    def answer(self, outcome: Outcome) -> None:
        self.outcome = self.outcome or outcome
        self.gate.set()


@dataclass(eq=False)
class Server:
    """An `Upstream`. Answers at once unless `slow`; then each read waits in `arrived`."""

    name: str = NAME
    slow: bool = False
    down: bool = False
    subscribable: bool = True
    early: bool = False
    """Whether it knows what it will say as soon as it is asked."""
    hints: dict[str, object] = field(default_factory=dict)
    padding: int = 0
    instead: Outcome | None = None
    """What every read is answered, in place of the resource."""
    question: InputRequest | None = None
    """What every read asks first."""
    versions: dict[str, int] = field(default_factory=dict)
    arrived: list[Arrived] = field(default_factory=list)
    reads: int = 0
    tool_calls: int = 0

    @property
    def status(self) -> UpstreamStatus:
        return UpstreamStatus(self.name, LinkState.READY, 0, "fake")

    def release(self, owner: str) -> None:
        return

    def write(self, uri: str) -> int:
        self.versions[uri] = self.versions.get(uri, 0) + 1
        return self.versions[uri]

    def result(self, call: Call, uri: str) -> Outcome:
        """What it says now."""
        if self.down:
            return DOWN
        if self.instead is not None:
            return self.instead
        value = f"{self.versions.get(uri, 0)} for {call.caller.principal.name}"
        contents = [{"uri": uri, "text": value, "blob": "x" * self.padding}]
        return Complete(first_level({"contents": contents, **self.hints}))

    async def __call__(self, call: Call) -> Outcome:
        if call.method == "tools/call":
            self.tool_calls += 1
            return Complete(first_level({"content": []}))
        return await self._read(call)

    async def _read(self, call: Call) -> Outcome:
        self.reads += 1
        uri = msgspec.json.decode(call.params["uri"])
        arrived = Arrived(call, uri, self.result(call, uri) if self.early else None)
        self.arrived.append(arrived)
        try:
            if self.question is not None:
                try:
                    await call.client.ask(self.question)
                except McpError as error:
                    return Failed(error.error(), Party.CLIENT)
            if self.slow:
                await arrived.gate.wait()
            return arrived.outcome or self.result(call, uri)
        finally:
            self.arrived.remove(arrived)


@dataclass(eq=False)
class Table:
    """The `Subscriptions`: who holds what. Agrees at once unless `slow`."""

    slow: bool = False
    refuses: bool = False
    held: dict[Listener, str] = field(default_factory=dict)
    waiting: dict[Listener, anyio.Event] = field(default_factory=dict)

    async def watch(self, topic: ResourceKey, listener: Listener, spelling: str) -> Outcome:
        if self.refuses:
            return Failed(ErrorObject(METHOD_NOT_FOUND, "no subscriptions here"), Party.UPSTREAM)
        self.held[listener] = topic.uri
        if self.slow:
            self.waiting[listener] = anyio.Event()
            await self.waiting[listener].wait()
        return Complete({})

    def unwatch(self, topic: ResourceKey, listener: Listener, spelling: str) -> None:
        if self.held.get(listener) == topic.uri:
            del self.held[listener]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """A cache in front of one server, or several."""

    server: Server
    cache: ReadCache
    clock: Clock
    table: Table
    metrics: Metrics
    tasks: TaskGroup
    running: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def __post_init__(self) -> None:
        self.cache.watch_through(self.table)
        self.upstream = self.cache.around(self.server)

    async def run(self) -> None:
        with self.running:
            await self.cache.run()

    async def get(self, call: Call) -> Outcome:
        return await self.upstream(call)

    def begin(self, call: Call) -> Pending:
        """Begins a call, to be looked at or cancelled later."""
        pending = Pending(call)
        self.tasks.start_soon(pending.run, self.upstream)
        return pending

    def updated(self, uri: str) -> None:
        self.cache.on_event(UpstreamChanged(NAME, None, ResourceUpdated(uri)))

    def connected(self, owner: LinkOwner = None) -> None:
        capabilities = {"resources": raw({"subscribe": self.server.subscribable})}
        self.cache.on_event(Connected(NAME, owner, ServerIdentity(Era.STATELESS, LATEST, capabilities)))

    def hears(self, hearing: PushChannel, owner: LinkOwner = None) -> None:
        self.cache.on_event(UpstreamChanged(NAME, owner, hearing))

    def lost(self, owner: LinkOwner = None) -> None:
        self.cache.on_event(Disconnected(NAME, owner, "gone"))

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, {"upstream": NAME, **labels}) or 0


@dataclass(eq=False)
class Pending:
    call: Call
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    outcome: Outcome | None = None

    async def run(self, upstream: object) -> None:
        assert callable(upstream)
        with self.scope:
            self.outcome = await upstream(self.call)

    async def done(self) -> Outcome:
        while self.outcome is None:
            await anyio.lowlevel.checkpoint()
        return self.outcome


@asynccontextmanager
async def world(
    server: Server | None = None,
    *,
    limits: settings.CacheLimits | None = None,
    connection: str = "shared",
    read_only: frozenset[str] = frozenset(),
    **cache: object,
) -> AsyncIterator[World]:
    """A running cache whose upstream is connected; `cache` is that upstream's settings."""
    server = server or Server()
    spec = {"name": NAME, "url": "http://localhost", "prefix": "f", "connection": connection, "cache": cache}
    in_force = settings.Settings.model_validate({"proxy": {"cache": limits or {}}, "upstreams": [spec]})
    clock, table, metrics = Clock(), Table(), Metrics()
    reads = ReadCache(in_force, metrics, lambda upstream, owner, name: name in read_only, clock)
    async with anyio.create_task_group() as tasks:
        it = World(server, reads, clock, table, metrics, tasks)
        tasks.start_soon(it.run)
        await settled()
        it.connected()
        yield it
        tasks.cancel_scope.cancel()


async def settled() -> None:
    """Lets every task go as far as it can."""
    for _ in range(12):
        await anyio.lowlevel.checkpoint()
