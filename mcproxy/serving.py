"""Put listeners in front of a running gateway, and heed signals, until it is told to stop; then drain.

HTTP or stdio for clients; beside HTTP the status page, health, metrics and login pages; for commands the control
socket.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import assert_never

import anyio
import structlog

from mcproxy.admin import control
from mcproxy.admin.health import HealthReport
from mcproxy.admin.measures.audit_usage import UsageReader
from mcproxy.app import App
from mcproxy.downstream.front import client_document, stdio, tls
from mcproxy.downstream.front import oauth_metadata as metadata
from mcproxy.downstream.front.authentication import Authenticator
from mcproxy.downstream.front.listener import serve_http
from mcproxy.downstream.front.operators import for_operators, missing_role
from mcproxy.http import server as http
from mcproxy.login.site import serving_alone
from mcproxy.service import control_socket, systemd
from mcproxy.service.reloading import Reloading
from mcproxy.service.signals import SignalAction, handle_signals
from mcproxy.telemetry import logs
from mcproxy.upstream.oauth import registration

log = structlog.get_logger()

Started = Callable[[str, str | None], None]
"""Called with the base URL, and with the status page's URL, if there is one."""


async def run_http(
    app: App, *, started: Started, reloading: Reloading | None = None, tell: systemd.Notify = systemd.not_notified
) -> None:
    """Serves until SIGTERM or SIGINT, then drains within `shutdown_grace` (R9). `tell` notifies the service manager."""
    stop = anyio.Event()

    def ready(url: str) -> None:
        app.url, app.status_page = url, status_page
        app.site.listening_url = url
        started(url, status_page)
        tell(f"{systemd.READY}\nSTATUS=serving {url}")

    identify = Authenticator(app.context, app.identity)
    app.reload = None if reloading is None else partial(reloading.ask, quietly=True)
    app.tls = tls.context(app.settings.proxy.tls)
    app.identity.prepare()
    async with (
        _status_page(app, reloading) as status_page,
        _operated(app, stop, reloading, tell, hangup_reloads=True),
    ):
        await serve_http(
            app.context,
            stop=stop,
            started=ready,
            identify=identify,
            extra_routes=[
                *_reported(app, identify),
                *metadata.routes(app.context, app.identity),
                *client_document.routes(app.context, registration.DOCUMENT_PATH, registration.document),
                *app.login.routes(),
            ],
            tls=app.tls,
            companion=app.companion,
        )


@asynccontextmanager
async def _status_page(app: App, reloading: Reloading | None) -> AsyncIterator[str | None]:
    """The URL of the status page, for as long as it is entered; None where none is configured."""
    admin = app.settings.admin
    if admin.port is None:
        yield None
        return
    # What serves and draws pages, aiohttp's server and templates, takes long to import.
    from mcproxy.admin.approval_page import ApprovalPage
    from mcproxy.admin.listener import served
    from mcproxy.admin.measures.statistics import CallStatistics
    from mcproxy.admin.pages import Pages
    from mcproxy.admin.status_page import StatusPage
    from mcproxy.downstream.front.page_authentication import OperatorAuthentication

    figures = CallStatistics(app.metrics)
    pages = Pages(
        app,
        figures,
        (lambda: frozenset()) if reloading is None else lambda: reloading.secrets,
        (lambda: None) if reloading is None else lambda: reloading.refused,
        token=secrets.token_urlsafe(),
    )
    operators = OperatorAuthentication(app.context, app.identity, lambda: app.settings)
    usage = UsageReader(lambda: app.settings.access.audit.file)
    page = StatusPage(pages, app.feed, operators, app.actions, usage, app.site.operators_url)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(figures.run)
        routes = [*page.routes(), *ApprovalPage(pages, app.approval_links).routes()]
        async with served(
            admin.host, admin.port, routes, app.reports(), operators.check_host, operators.is_operator
        ) as url:
            app.approval_links.base = admin.public_url or url
            yield f"{url}/ui"
            app.approval_links.base = None
        tasks.cancel_scope.cancel()


async def run_stdio(app: App, *, reloading: Reloading | None = None) -> None:
    """Serves the client at stdin and stdout until it closes stdin (R12), or SIGTERM or SIGINT; then drains (R9)."""
    stop = anyio.Event()
    async with _operated(app, stop, reloading, systemd.not_notified, hangup_reloads=False), _personal_pages(app):
        await stdio.serve_stdio(app.context, stop=stop, principal=app.identity.local)


@asynccontextmanager
async def _personal_pages(app: App) -> AsyncIterator[None]:
    """Serves the login pages on loopback, for the person who uses this machine, if an upstream needs them."""
    app.site.is_personal = True
    if not any(spec.oauth is not None and spec.enabled for spec in app.settings.upstreams):
        yield
        return
    async with serving_alone(app.login.routes()) as app.site.listening_url:
        yield


@asynccontextmanager
async def _operated(
    app: App, stop: anyio.Event, reloading: Reloading | None, tell: systemd.Notify, *, hangup_reloads: bool
) -> AsyncIterator[None]:
    """Handles signals, and watches the configuration's files, until left."""

    async def wind_down() -> None:
        await told_to_stop.wait()
        app.stopping = True
        tell(systemd.STOPPING)
        await anyio.sleep(app.settings.proxy.shutdown_delay)
        app.feed.close()
        stop.set()

    def act(order: SignalAction) -> None:
        match order:
            case SignalAction.STOP:
                told_to_stop.set()
            case SignalAction.RELOAD:
                assert reloading is not None
                reloading.ask()
            case SignalAction.VERBOSE:
                level = app.settings.proxy.log_level if logs.is_verbose() else "debug"
                logs.set_level(level)
                log.info("log level changed", threshold=level)  # `level` is that of the line
            case _:
                assert_never(order)

    told_to_stop = anyio.Event()
    async with _controlled(app, reloading), anyio.create_task_group() as tasks:
        tasks.start_soon(partial(handle_signals, act, reloads=hangup_reloads and reloading is not None))
        tasks.start_soon(wind_down)
        tasks.start_soon(systemd.keep_alive, tell, systemd.watchdog_timeout())
        if reloading is not None:
            tasks.start_soon(reloading.run)
        yield
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _controlled(app: App, reloading: Reloading | None) -> AsyncIterator[None]:
    """Answers commands of this user while entered, where there is a file of the configuration."""
    if reloading is None or not app.settings.admin.socket:
        yield
        return
    with control_socket.bound(reloading.path) as listener:
        async with control.served_at_socket(listener, control.routes(app, app.actions, lambda: reloading.refused)):
            yield


def _reported(app: App, identify: Authenticator) -> list[http.Route]:
    """Health for everyone, with reasons for operators; metrics, which name every upstream, for operators."""

    async def is_operator(request: http.Request) -> bool:
        found = await identify.recognize(request)
        return found is not None and missing_role(app.settings, found) is None

    def telling(report: Callable[[str], HealthReport]) -> http.RoutedHandler:
        async def tell(request: http.Request, _found: Mapping[str, str]) -> http.Response:
            told = report(request.fields.joined("accept") or "")
            body = told.body if told.details is None or not await is_operator(request) else told.details
            return http.Response(told.status, body, {"Content-Type": told.content_type, **told.fields})

        return tell

    handlers = {path: telling(report) for path, report in app.reports().items()}
    metrics_path = app.settings.proxy.paths.metrics
    handlers[metrics_path] = for_operators(handlers[metrics_path], identify, lambda: app.settings)
    return [http.Route(method, path, handler) for path, handler in handlers.items() for method in ("GET", "HEAD")]
