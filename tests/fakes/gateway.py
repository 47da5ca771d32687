"""A core that answers as a test tells it to: the handler and the audience that transports are given."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from prometheus_client import CollectorRegistry

from mcproxy.access.identity import Identified, Identity
from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import InputRequest, Listener
from mcproxy.call.errors import McpError, Party
from mcproxy.call.identity import AGGREGATE, Principal
from mcproxy.downstream.front import oauth_metadata as metadata
from mcproxy.downstream.front.app import Identify, anonymous
from mcproxy.downstream.front.authentication import Authenticator
from mcproxy.downstream.front.listener import serve_http
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.open_streams import IdentifyAgain
from mcproxy.http import server as http
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, ErrorObject, first_level, parse_text, raw
from mcproxy.protocol.methods import LOG_LEVELS
from mcproxy.sealing import Sealer
from mcproxy.settings import LimitSettings, Proxy
from mcproxy.settings.access.authentication import Authentication
from mcproxy.telemetry.metrics import Metrics

DISCOVERED = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}},
    "serverInfo": {"name": "fake", "version": "1"},
    "instructions": "Be kind.",
}

Answering = Callable[[Call], Awaitable[Outcome]]


async def discover(call: Call) -> Outcome:
    return Complete(first_level(DISCOVERED))


async def list_tools(call: Call) -> Outcome:
    return Complete(first_level({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}))


async def echo(call: Call) -> Outcome:
    """The call's own params, as structured content."""
    return Complete(first_level({"content": [], "structuredContent": {"params": call.params}}))


async def set_level(call: Call) -> Outcome:
    assert call.listener is not None
    level = parse_text(call.params.get("level", b""))
    if level not in LOG_LEVELS:
        raise McpError(INVALID_PARAMS, "no such level")
    call.listener.set_log_level(level)
    return Complete({})


async def empty(call: Call) -> Outcome:
    return Complete({})


@dataclass
class FakeGateway:
    """`answers` by method; what has none is not found. Remembers calls and listeners."""

    answers: dict[str, Answering] = field(
        default_factory=lambda: {
            "server/discover": discover,
            "tools/list": list_tools,
            "tools/call": echo,
            "logging/setLevel": set_level,
            "resources/subscribe": empty,
            "notifications/roots/list_changed": empty,
        }
    )
    calls: list[Call] = field(default_factory=list)
    joined: list[Listener] = field(default_factory=list)
    left: list[Listener] = field(default_factory=list)
    _parted: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(self, call: Call) -> Outcome:
        self.calls.append(call)
        answer = self.answers.get(call.method)
        if answer is None:
            error = ErrorObject(METHOD_NOT_FOUND, f"Method not found: {call.method}")
            return Failed(error, Party.CLIENT)
        try:
            return await answer(call)
        except McpError as refusal:
            return Failed(refusal.error(), Party.CLIENT)

    def join(self, listener: Listener) -> None:
        self.joined.append(listener)

    def leave(self, listener: Listener) -> None:
        self.left.append(listener)
        self._parted.set()
        self._parted = anyio.Event()

    async def emptied_of(self, many: int) -> None:
        """Returns once so many listeners have left."""
        while len(self.left) < many:
            await self._parted.wait()

    @property
    def present(self) -> list[Listener]:
        return [listener for listener in self.joined if listener not in self.left]


@dataclass
class Held:
    """An answer that a test holds back. `arrived` and `cancelled` say what became of the call."""

    arrived: anyio.Event = field(default_factory=anyio.Event)
    release: anyio.Event = field(default_factory=anyio.Event)
    cancelled: anyio.Event = field(default_factory=anyio.Event)
    call: Call | None = None

    async def __call__(self, call: Call) -> Outcome:
        self.call = call
        self.arrived.set()
        try:
            await self.release.wait()
        except BaseException:
            self.cancelled.set()
            raise
        return Complete(first_level({"content": []}))


def asking(method: str, params: dict[str, object] | None = None) -> Answering:
    """An answer that is what the client says to a question."""

    async def answer(call: Call) -> Outcome:
        request = InputRequest(method, {key: raw(value) for key, value in (params or {}).items()})
        return Complete(first_level({"content": [], "structuredContent": {"answer": await call.client.ask(request)}}))

    return answer


def quick(limits: LimitSettings | None = None, **changes: object) -> Proxy:
    """Settings for tests: any free port, and no deadline of a peer's that a slow machine could miss."""
    unlimited = dict.fromkeys(("write_timeout", "read_timeout", "connection_idle", "stream_after"), 3600)
    bounds = limits or LimitSettings(head_timeout=3600)
    return Proxy.model_validate({"port": 0, **unlimited, "limits": bounds, **changes})


Exists = Callable[[str, Principal], bool]


def up_for_all(endpoint: str, principal: Principal) -> bool:
    """An endpoint of its own for the upstream `up`."""
    return endpoint in (AGGREGATE, "up")


@asynccontextmanager
async def edge_of(
    gateway: FakeGateway, proxy: Proxy | None = None, *, secret: bytes = b"secret", exists: Exists = up_for_all
) -> AsyncIterator[TransportContext]:
    async with anyio.create_task_group() as tasks:
        metrics = Metrics(CollectorRegistry())
        yield TransportContext(gateway, gateway, proxy or quick(), Sealer(secret), metrics, exists, tasks)
        tasks.cancel_scope.cancel()


@dataclass(frozen=True)
class IdentifiedBy:
    """Identifies requests by a function (implements `front.app.Identify`)."""

    find: Callable[[http.Request], Awaitable[Principal]]

    header_names: frozenset[str] = frozenset()
    found: dict[bytes, Identified] = field(default_factory=dict)
    """By credentials: the values of `header_names`, or all fields if there are none."""

    def credentials(self, request: http.Request) -> bytes:
        return repr([request.fields.all(name) for name in self.header_names or sorted(request.fields)]).encode()

    def known(self, credentials: bytes) -> Identified | None:
        return self.found.get(credentials)

    async def __call__(self, request: http.Request) -> Identified:
        found = self.found[self.credentials(request)] = Identified(await self.find(request), Authentication())
        return found

    def again(self, request: http.Request) -> IdentifyAgain:
        async def identify() -> Identified:
            return await self(request)

        return identify


@dataclass(frozen=True)
class Served:
    url: str
    context: TransportContext
    gateway: FakeGateway
    identity: Identity
    stop: anyio.Event
    stopped: anyio.Event

    def reconfigure(self, proxy: Proxy | None = None, forwarded: frozenset[str] | None = None) -> None:
        """Puts other settings in force, as a reload does; what is None stays."""
        context = self.context
        context.reconfigure(
            context.proxy if proxy is None else proxy, context.forwarded if forwarded is None else forwarded
        )

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        samples = [sample for family in self.context.metrics.registry.collect() for sample in family.samples]
        found = [sample for sample in samples if sample.name == name and labels.items() <= sample.labels.items()]
        return sum(sample.value for sample in found)


@asynccontextmanager
async def served(
    gateway: FakeGateway | None = None,
    proxy: Proxy | None = None,
    *,
    secret: bytes = b"secret",
    exists: Exists = up_for_all,
    identify: Identify = anonymous,
    extra_routes: Iterable[http.Route] = (),
    authentication: Authentication | None = None,
    tls: ssl.SSLContext | None = None,
    wall: Callable[[], float] = time.time,
) -> AsyncIterator[Served]:
    """A gateway that listens on a free port of loopback. `authentication` takes the place of `identify`."""
    gateway = gateway or FakeGateway()
    free = (proxy or quick()).model_copy(update={"port": 0})
    async with edge_of(gateway, free, secret=secret, exists=exists) as context:
        stop, up, stopped = anyio.Event(), anyio.Event(), anyio.Event()
        urls: list[str] = []
        identity = Identity(authentication or Authentication(), context.tasks.start_soon, wall=wall)
        who: Identify = identify if authentication is None else Authenticator(context, identity)
        routes = [*extra_routes, *metadata.routes(context, identity)]

        def started(url: str) -> None:
            urls.append(url)
            up.set()

        async def run() -> None:
            await serve_http(context, stop=stop, started=started, identify=who, extra_routes=routes, tls=tls, wall=wall)
            stopped.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await up.wait()
            yield Served(urls[0], context, gateway, identity, stop, stopped)
            stop.set()


async def nobody_waits() -> None:
    """Returns once no connection has a task of its own."""
    while any("Connection.serve" in repr(task.get_coro()) for task in asyncio.all_tasks()):
        await anyio.lowlevel.checkpoint()
