"""An upstream that says what the test lets it say, and the clients that a gateway in front of it has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import Change, InputRequest, ListChanged, Listener
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import AGGREGATE, ANONYMOUS, Caller, LinkOwner, Principal
from mcproxy.call.upstreams import (
    Connected,
    Disconnected,
    Idled,
    LinkState,
    PushChannel,
    Retired,
    ServerIdentity,
    UnannouncedLists,
    UpstreamChanged,
    UpstreamEvent,
    UpstreamStatus,
)
from mcproxy.concurrency.clock import Sleep
from mcproxy.features import features_of
from mcproxy.gateway.feature import Listed
from mcproxy.gateway.gateway import Gateway
from mcproxy.protocol.eras import LATEST_HANDSHAKE, Era
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, ErrorObject, Params, first_level, parse_text, raw
from mcproxy.protocol.methods import Kind, row_of
from mcproxy.sealing import Sealer
from mcproxy.settings import Settings
from mcproxy.telemetry.metrics import Metrics
from tests.fakes.reading import Clock
from tests.timeouts import GUARD

Answer = Callable[[Call], Outcome]

EVERYTHING: dict[str, object] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "logging": {},
    "completions": {},
}


def complete(**members: object) -> Complete:
    return Complete(first_level(members))


def failed(
    message: str, code: int = INTERNAL_ERROR, reason: Reason = Reason.PROTOCOL_ERROR, data: object = None
) -> Failed:
    return Failed(ErrorObject(code, message, None if data is None else raw(data)), Party.UPSTREAM, reason)


def decoded(value: Outcome | Raw | Params) -> dict[str, object]:
    """A result, or the whole of raw params, as plain values."""
    assert not isinstance(value, Failed), value
    data = value if isinstance(value, Raw | dict) else value.result
    members: dict[str, object] = msgspec.json.decode(raw(data))
    return members


def error(outcome: Outcome) -> ErrorObject:
    assert isinstance(outcome, Failed), outcome
    return outcome.error


class Gate:
    """Holds whoever comes while it is shut, and counts who is held."""

    def __init__(self) -> None:
        self._open = anyio.Event()
        self._open.set()
        self._came = anyio.Event()
        self.held = 0

    def shut(self) -> None:
        self._open = anyio.Event()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        self.held += 1
        self._came.set()
        self._came = anyio.Event()
        try:
            await self._open.wait()
        finally:
            self.held -= 1

    async def holds(self, count: int) -> None:
        with anyio.fail_after(GUARD):
            while self.held < count:
                await self._came.wait()


def _owner(call: Call) -> LinkOwner:
    own = call.caller.credentials
    return call.over or call.caller.session or (own.key if own is not None else None)


class FakeUpstream:
    """A `call.upstreams.Upstream`. Lists are plain values; other methods answer from `answers`, else as unknown."""

    def __init__(self, name: str, **capabilities: object) -> None:
        self.name = name
        self.identity = ServerIdentity(
            Era.HANDSHAKE,
            LATEST_HANDSHAKE,
            {key: raw(value) for key, value in (capabilities or EVERYTHING).items()},
        )
        self.state = LinkState.CONNECTING
        self.lists: dict[Kind, Sequence[object]] = {kind: [] for kind in Kind}
        self.lists_of: dict[str, dict[Kind, Sequence[object]]] = {}
        """What a session's own link lists instead, by session."""
        self.answers: dict[str, Answer] = {}
        self.calls: list[Call] = []
        self.released: list[str] = []
        self.owner_of: Callable[[Call], LinkOwner] = _owner
        self.gate = Gate()
        self.reachable = True
        self.on_event: Callable[[UpstreamEvent], None] = lambda event: None
        self._links: set[LinkOwner] = set()
        self._arrived = anyio.Event()

    @property
    def status(self) -> UpstreamStatus:
        return UpstreamStatus(self.name, self.state, 0, "fake")

    async def __call__(self, call: Call) -> Outcome:
        self.calls.append(call)
        self._arrived.set()
        self._arrived = anyio.Event()
        owner = self.owner_of(call)
        if owner not in self._links and not self.reachable:
            return failed(f"upstream {self.name!r}: connection refused", reason=Reason.UNAVAILABLE)
        if owner not in self._links:
            self.connect(owner)
        await self.gate.passed()
        return self._answer(call)

    def release(self, owner: str) -> None:
        self.released.append(owner)
        if owner in self._links:
            self._links.discard(owner)
            self.on_event(Retired(self.name, owner))

    def connect(self, owner: LinkOwner = None) -> None:
        self._links.add(owner)
        if owner is None:
            self.state = LinkState.READY
        self.on_event(Connected(self.name, owner, self.identity))

    def disconnect(self, owner: LinkOwner = None) -> None:
        self._links.discard(owner)
        if owner is None:
            self.state = LinkState.BACKING_OFF
        self.on_event(Disconnected(self.name, owner, "gone"))

    def idle(
        self, identity: ServerIdentity | None = None, lists: Mapping[Kind, Sequence[object]] | None = None
    ) -> None:
        """Stops until it is called; `identity` and `lists` are those recorded of one that was not started yet."""
        self._links.discard(None)
        self.state = LinkState.IDLE
        recorded = {kind: tuple(map(raw, entries)) for kind, entries in (lists or {}).items()}
        self.on_event(Idled(self.name, None, identity, recorded))

    def announce(self, change: Change | PushChannel | UnannouncedLists, owner: LinkOwner = None) -> None:
        self.on_event(UpstreamChanged(self.name, owner, change))

    def list_changed(self, kind: Kind, entries: Sequence[object]) -> None:
        self.lists[kind] = entries
        self.announce(ListChanged(kind))

    def count(self, method: str) -> int:
        return sum(call.method == method for call in self.calls)

    async def called(self, method: str, times: int = 1) -> None:
        with anyio.fail_after(GUARD):
            while self.count(method) < times:
                await self._arrived.wait()

    def _answer(self, call: Call) -> Outcome:
        if call.method in self.answers:
            return self.answers[call.method](call)
        kind = call.row.lists
        if kind is None:
            return failed("no such method", METHOD_NOT_FOUND)
        lists = self.lists_of.get(call.caller.session or "", self.lists)
        return complete(**{kind.member: lists[kind]})


@dataclass(eq=False)
class FakeListener:
    """A client between its calls, which remembers what it was told."""

    caller: Caller = field(default_factory=lambda: Caller(ANONYMOUS, LATEST_HANDSHAKE))
    changes: list[Change] = field(default_factory=list)
    told: anyio.Event = field(default_factory=anyio.Event)

    def set_log_level(self, level: str) -> None:
        self.caller = replace(self.caller, log_level=level)

    def signal(self, change: Change) -> None:
        self.changes.append(change)
        self.told.set()
        self.told = anyio.Event()

    async def ask(self, request: InputRequest) -> Raw:
        return raw({"asked": request.method, **request.params})

    async def hears(self, change: Change, times: int = 1) -> None:
        with anyio.fail_after(GUARD):
            while self.changes.count(change) < times:
                await self.told.wait()


@dataclass(eq=False)
class FakeClient:
    """A client during one call."""

    notified: list[tuple[str, Params]] = field(default_factory=list)
    asked: list[InputRequest] = field(default_factory=list)
    answer: object = field(default_factory=dict)

    def notify(self, method: str, params: Params) -> None:
        self.notified.append((method, params))

    async def ask(self, request: InputRequest) -> Raw:
        self.asked.append(request)
        return raw(self.answer)


class Sleeper:
    """Time that passes when the test says so. Remembers how long anybody wanted to sleep."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._woken = anyio.Event()
        self._came = anyio.Event()

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        self._came.set()
        self._came = anyio.Event()
        await self._woken.wait()

    async def slept(self, times: int) -> None:
        with anyio.fail_after(GUARD):
            while len(self.asked) < times:
                await self._came.wait()

    def wake(self) -> None:
        self._woken.set()
        self._woken = anyio.Event()


@dataclass
class House:
    """A gateway that runs in front of fakes."""

    gateway: Gateway
    settings: Settings
    upstreams: dict[str, FakeUpstream]
    metrics: Metrics
    sleeper: Sleeper
    clock: Clock

    def __getitem__(self, name: str) -> FakeUpstream:
        return self.upstreams[name]

    async def call(
        self,
        method: str,
        *,
        endpoint: str = AGGREGATE,
        version: str = LATEST_HANDSHAKE,
        session: str | None = None,
        client: FakeClient | None = None,
        listener: Listener | None = None,
        capabilities: Params | None = None,
        principal: Principal = ANONYMOUS,
        transport: str = "",
        **params: object,
    ) -> Outcome:
        caller = (
            listener.caller
            if listener
            else Caller(principal, version, capabilities or {}, endpoint=endpoint, session=session, transport=transport)
        )
        raw_params = {key: raw(value) for key, value in params.items()}
        with anyio.fail_after(GUARD):
            return await self.gateway.handler(
                Call(row_of(method), raw_params, caller, client or FakeClient(), listener)
            )

    async def ready(self) -> None:
        """Connects every upstream and waits for its lists."""
        for upstream in self.upstreams.values():
            upstream.connect()
        with anyio.fail_after(GUARD):
            await self.gateway.settled()

    def listener(
        self,
        endpoint: str = AGGREGATE,
        session: str | None = None,
        level: str | None = None,
        principal: Principal = ANONYMOUS,
    ) -> FakeListener:
        """One that has joined."""
        caller = Caller(principal, LATEST_HANDSHAKE, endpoint=endpoint, session=session, log_level=level)
        listener = FakeListener(caller)
        self.gateway.join(listener)
        return listener

    def names(self, kind: Kind, endpoint: str = AGGREGATE) -> list[str]:
        return [shown.key for shown in self.gateway.catalogue(endpoint).lists[kind]]

    async def listed(self, kind: Kind, **call: object) -> list[str]:
        """The keys of the list that a caller gets."""
        outcome = await self.call(kind.list_method, **call)  # type: ignore[arg-type]  # the options of `call`
        entries = decoded(outcome)[kind.member]
        assert isinstance(entries, list)
        return [entry[kind.key] for entry in entries]


def settings_of(
    upstreams: Mapping[str, Mapping[str, object]], access: object = None, endpoints: object = None, **proxy: object
) -> Settings:
    """Settings whose upstreams have their name as prefix, unless they say otherwise."""
    specs = [{"name": name, "prefix": name, "command": "fake", **options} for name, options in upstreams.items()]
    return Settings.model_validate(
        {"proxy": proxy, "access": access or {}, "endpoints": endpoints or {}, "upstreams": specs}
    )


@asynccontextmanager
async def house(
    *upstreams: FakeUpstream,
    options: Mapping[str, Mapping[str, object]] | None = None,
    access: object = None,
    endpoints: object = None,
    features: Callable[[Settings], Sequence[Listed]] = features_of,
    sleep: Sleep | None = None,
    state: Path | None = None,
    **proxy: object,
) -> AsyncIterator[House]:
    """Runs a gateway in front of `upstreams`; `options` are their settings, by name."""
    options = options or {}
    specs = {upstream.name: options.get(upstream.name, {}) for upstream in upstreams}
    settings = settings_of(specs, access, endpoints, **proxy)
    by_name = {upstream.name: upstream for upstream in upstreams}
    metrics, sleeper, clock = Metrics(), Sleeper(), Clock()
    gateway = Gateway(
        settings,
        by_name,
        metrics,
        Sealer(b"secret"),
        sleep=sleep or sleeper,
        now=clock,
        features=features,
        state=state,
    )
    for upstream in upstreams:
        upstream.on_event = gateway.on_event
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gateway.run)
        try:
            yield House(gateway, settings, by_name, metrics, sleeper, clock)
        finally:
            tasks.cancel_scope.cancel()


def tool(name: str, **members: object) -> dict[str, object]:
    return {"name": name, "inputSchema": {"type": "object"}, **members}


def resource(uri: str, **members: object) -> dict[str, object]:
    return {"uri": uri, "name": "a resource", **members}


def text_of(value: Raw) -> str:
    text = parse_text(value)
    assert text is not None
    return text


async def quiet() -> None:
    """Lets every task go as far as it can."""
    for _ in range(30):
        await anyio.lowlevel.checkpoint()
