"""The operator's own HTTP listener, apart from the clients': what it serves stays up when they are turned away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

MAX_FORM: Final = 1024 * 1024
"""Bytes of a form."""


@asynccontextmanager
async def served(host: str, port: int, routes: Iterable[web.RouteDef]) -> AsyncIterator[str]:
    """The base URL of the listener, for as long as it is entered. Raises OSError where it cannot listen."""
    app = web.Application(client_max_size=MAX_FORM)
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.25)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        taken = runner.addresses[0][1]
        yield f"http://[{host}]:{taken}" if ":" in host else f"http://{host}:{taken}"
    finally:
        await runner.cleanup()
