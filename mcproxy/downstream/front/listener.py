"""The HTTP listener of clients: opens the socket, serves `app` there, and stops without cutting off calls early (R9).

Answers no request itself; only the HTTP server's refusals of what is no valid request.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import anyio

from mcproxy.call.errors import McpError
from mcproxy.downstream.front.app import Companion, HttpApp, Identify, alone, anonymous
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.responses import error
from mcproxy.http import server as http
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST

_SETTINGS: Final = {408: "limits.head_timeout", 503: "limits.max_connections"}
"""The setting to name in a refusal by the HTTP server, by status."""
FINAL_FLUSH: Final = 0.5
"""Seconds beyond `shutdown_grace` for clients to read what was written."""


async def serve_http(
    context: TransportContext,
    *,
    stop: anyio.Event,
    started: Callable[[str], None],
    identify: Identify = anonymous,
    extra_routes: Iterable[http.Route] = (),
    tls: ssl.SSLContext | None = None,
    companion: Companion = alone,
    wall: Callable[[], float] = time.time,
) -> None:
    """Serves until `stop`; then accepts nothing, lets calls end within `shutdown_grace`, and returns (R9).

    `started` is called with the base URL, including the port that was bound. `extra_routes` are served beside MCP,
    behind the same checks of Host and Origin, without identity. `wall` is a Unix time in seconds, by which credentials
    expire. Raises OSError where it cannot listen.
    """
    proxy = context.proxy
    app = HttpApp(context, identify, extra_routes, companion, wall)
    async with companion.serving(app), anyio.create_task_group() as tasks:
        server = http.Server(app.handle, _refuse, partial(_server_bounds, context))
        await tasks.start(server.run)
        port = await server.listen(proxy.host, proxy.port, tls)
        tasks.start_soon(app.run)
        try:
            started(_base_url("http" if tls is None else "https", proxy.host, port))
            await stop.wait()
        finally:
            with anyio.CancelScope(shield=True):
                companion.drain()
                server.drain()
                await app.drain()
                await server.close(FINAL_FLUSH)
                app.close()
            tasks.cancel_scope.cancel()


def _refuse(status: int, sentence: str) -> http.Response:
    """The response to what is no valid request, and to a crash of a handler."""
    code = INTERNAL_ERROR if status == 500 else INVALID_REQUEST
    setting = _SETTINGS.get(status)
    return error(status, McpError(code, f"{sentence} ({setting})" if setting else sentence))


def _server_bounds(context: TransportContext) -> http.Bounds:
    limits = context.proxy.limits
    return http.Bounds(
        max_body=limits.max_body_bytes,
        idle=context.proxy.connection_idle,
        write_timeout=context.proxy.write_timeout,
        connections=limits.max_connections,
        head_timeout=limits.head_timeout,
        unsent=limits.max_unsent_bytes,
    )


def _base_url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
