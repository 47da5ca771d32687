"""The composition root: settings in, a running gateway out. The only module that sees both edges.

Upstreams are supervised, the catalogue is kept, and calls are answered for as long as `running` is entered;
`serve_http` and `serve_stdio` put a listener in front of it. Decides nothing about a call.
"""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import structlog
from aiohttp import web
from anyio.abc import TaskGroup

from mcproxy.admin.health import routes
from mcproxy.call import Audience, Handler, Phase, UpstreamEvent, UpstreamStatus
from mcproxy.catalog.merging import View
from mcproxy.downstream import listener, stdio
from mcproxy.downstream.edge import Edge
from mcproxy.gateway.gateway import Gateway
from mcproxy.metrics import Metrics
from mcproxy.sealing import Sealer
from mcproxy.settings import Settings
from mcproxy.upstream.supervisor import Places, Supervisor

log = structlog.get_logger()

_HANGUP: Final = tuple(number for number in signal.Signals if number.name == "SIGHUP")
"""Empty on Windows, which has no such signal."""

EventSink = Callable[[UpstreamEvent], None]


@dataclass(frozen=True, slots=True)
class App:
    """A gateway that runs, without a listener."""

    settings: Settings
    metrics: Metrics
    edge: Edge
    gateway: Gateway
    upstreams: tuple[Supervisor, ...]

    @property
    def handler(self) -> Handler:
        return self.gateway.handler

    @property
    def audience(self) -> Audience:
        return self.gateway.audience

    def statuses(self) -> list[UpstreamStatus]:
        return [upstream.status for upstream in self.upstreams]

    def catalogue(self, endpoint: str = "") -> View:
        return self.gateway.catalogue(endpoint)

    async def settled(self) -> None:
        """Returns when every upstream's first attempt is over and the lists of those that connected are known."""
        await self.gateway.settled()

    def unready(self) -> list[str]:
        """The required upstreams that are not connected (requirement R51)."""
        required = {spec.name for spec in self.settings.upstreams if spec.required and spec.enabled}
        return [s.name for s in self.statuses() if s.name in required and s.phase is not Phase.READY]

    def routes(self) -> list[web.RouteDef]:
        """Health and metrics, to be served beside MCP."""
        return list(routes(self.metrics, self.unready, metrics_path=self.settings.proxy.paths.metrics))


@asynccontextmanager
async def running(
    settings: Settings, *, metrics: Metrics | None = None, on_event: EventSink | None = None
) -> AsyncIterator[App]:
    """Connects upstreams in the background and answers calls until left; then every upstream is stopped."""
    metrics = metrics or Metrics()
    sinks: list[EventSink] = [on_event] if on_event else []

    def publish(event: UpstreamEvent) -> None:
        for sink in sinks:
            sink(event)

    specs = [spec for spec in settings.upstreams if spec.enabled]
    places = Places(settings.proxy.limits.max_connections_total)
    gateway_id = secrets.token_hex(8)
    upstreams = tuple(
        Supervisor(spec, settings.proxy, publish, metrics, places=places, gateway_id=gateway_id) for spec in specs
    )
    sealer = Sealer(_secret(settings))
    gateway = Gateway(settings, {upstream.name: upstream for upstream in upstreams}, metrics, sealer, gateway_id)
    sinks.insert(0, gateway.on_event)
    async with anyio.create_task_group() as tasks:
        edge = _edge(settings, gateway, sealer, metrics, tasks, [spec.name for spec in specs])
        tasks.start_soon(gateway.run)
        for upstream in upstreams:
            tasks.start_soon(upstream.run)
        yield App(settings, metrics, edge, gateway, upstreams)
        tasks.cancel_scope.cancel()


async def serve_http(app: App, *, started: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT, then drains within `shutdown_grace` (R9). `started` hears the base URL."""
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_on_signal, stop)
        await listener.serve_http(app.edge, stop=stop, started=started, extra_routes=app.routes())
        tasks.cancel_scope.cancel()


async def serve_stdio(app: App) -> None:
    """Serves the client at stdin and stdout until it closes stdin (R12), or SIGTERM or SIGINT; then drains (R9)."""
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_on_signal, stop)
        await stdio.serve_stdio(app.edge, stop=stop)
        tasks.cancel_scope.cancel()


async def _on_signal(stop: anyio.Event) -> None:
    """Sets `stop` at the first signal to end; a second one ends the process at once."""
    with anyio.open_signal_receiver(*_endings()) as signals:
        received = await anext(signals)
    if received in _HANGUP:
        # A terminal that closes says so, and then its shell does.
        signal.signal(received, signal.SIG_IGN)
    stop.set()
    log.info("stopping", signal=signal.Signals(received).name)


def _endings() -> list[signal.Signals]:
    """The signals that stop a gateway, but for what whoever started it had ignored, as `nohup` does."""
    named = (signal.SIGTERM, signal.SIGINT, *_HANGUP)
    return [number for number in named if signal.getsignal(number) is not signal.SIG_IGN]


def _edge(
    settings: Settings, gateway: Gateway, sealer: Sealer, metrics: Metrics, tasks: TaskGroup, names: Iterable[str]
) -> Edge:
    endpoints = frozenset(names)
    return Edge(
        handler=gateway.handler,
        audience=gateway.audience,
        proxy=settings.proxy,
        sealer=sealer,
        metrics=metrics,
        endpoints=lambda: endpoints,
        tasks=tasks,
        tool_schema=gateway.tool_schema,
    )


def _secret(settings: Settings) -> bytes:
    """The key that session ids are sealed under: the configured one, else one kept between runs (R56)."""
    if settings.proxy.secret is not None:
        return settings.proxy.secret.encode()
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "mcproxy" / "secret"
    fresh = secrets.token_bytes(32)
    try:
        return _kept(state, fresh)
    except (OSError, RuntimeError) as error:
        log.warning("what clients carry for us will not survive a restart", why=str(error), remedy="set proxy.secret")
        return fresh


def _kept(path: Path, fresh: bytes) -> bytes:
    """What `path` holds; `fresh`, readable by this user alone, where it did not exist."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=path.parent) as file:
        file.write(fresh)
        file.flush()
        with suppress(FileExistsError):
            os.link(file.name, path)  # whole or not at all, whoever else starts at this moment
    kept = path.read_bytes()
    if len(kept) < len(fresh):
        raise OSError(f"{path} is too short for a key: remove it")
    return kept
