"""The operators' HTTP listener, apart from the clients': it stays up when clients are turned away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

from aiohttp import web

from mcproxy.admin.health import HealthReport, Reports

WebHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_FORM: Final = 1024 * 1024
"""Largest form, in bytes."""

NO_REPORTS: Final[Reports] = MappingProxyType({})

IsOperator = Callable[[web.Request], Awaitable[bool]]
"""Returns whether an operator sends a request to a page that is for everyone."""


async def _nobody(_request: web.Request) -> bool:
    return False


@asynccontextmanager
async def served(
    host: str,
    port: int,
    routes: Iterable[web.RouteDef],
    reports: Reports = NO_REPORTS,
    check_host: Callable[[web.Request], None] = lambda _request: None,
    is_operator: IsOperator = _nobody,
) -> AsyncIterator[str]:
    """Listens while entered; yields the base URL. `check_host` raises web.HTTPException for a foreign Host.

    Raises OSError if it cannot listen.
    """

    @web.middleware
    async def checked(request: web.Request, handler: WebHandler) -> web.StreamResponse:
        check_host(request)
        return await handler(request)

    app = web.Application(client_max_size=MAX_FORM, middlewares=[checked])
    app.add_routes([*routes, *(web.get(path, _handler(report, is_operator)) for path, report in reports.items())])
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.25)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        taken = runner.addresses[0][1]
        yield f"http://[{host}]:{taken}" if ":" in host else f"http://{host}:{taken}"
    finally:
        await runner.cleanup()


def _handler(
    report: Callable[[str], HealthReport], is_operator: IsOperator
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        answer = report(request.headers.get("Accept", ""))
        body = answer.body if answer.details is None or not await is_operator(request) else answer.details
        return web.Response(
            status=answer.status, body=body, headers={"Content-Type": answer.content_type, **answer.fields}
        )

    return handle
