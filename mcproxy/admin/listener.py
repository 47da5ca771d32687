"""The operator's own HTTP listener, apart from the clients': what it serves stays up when they are turned away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

from aiohttp import web

from mcproxy.admin.health import HealthReport, Reports

MAX_FORM: Final = 1024 * 1024
"""Bytes of a form."""

NO_REPORTS: Final[Reports] = MappingProxyType({})


@asynccontextmanager
async def served(
    host: str, port: int, routes: Iterable[web.RouteDef], reports: Reports = NO_REPORTS
) -> AsyncIterator[str]:
    """The base URL of the listener, for as long as it is entered. Raises OSError where it cannot listen."""
    app = web.Application(client_max_size=MAX_FORM)
    app.add_routes([*routes, *(web.get(path, _telling(report)) for path, report in reports.items())])
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.25)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        taken = runner.addresses[0][1]
        yield f"http://[{host}]:{taken}" if ":" in host else f"http://{host}:{taken}"
    finally:
        await runner.cleanup()


def _telling(report: Callable[[str], HealthReport]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def tell(request: web.Request) -> web.Response:
        told = report(request.headers.get("Accept", ""))
        return web.Response(
            status=told.status, body=told.body, headers={"Content-Type": told.content_type, **told.fields}
        )

    return tell
