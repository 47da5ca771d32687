"""A reverse proxy that does nothing: `python -m benchmarks.noop PORT UPSTREAM_URL`.

The least that a proxy on aiohttp can do: read the body, send it on, read the answer, return it. What mcproxy
costs beyond this is what it does; the libraries are the same.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from typing import Final

import aiohttp
import uvloop
from aiohttp import web

HOP_BY_HOP: Final = frozenset({"host", "connection", "content-length", "transfer-encoding", "keep-alive"})
MAX_BYTES: Final = 64 * 2**20
_HTTP: Final = web.AppKey("http", aiohttp.ClientSession)


def application(upstream: str) -> web.Application:
    async def forward(request: web.Request) -> web.Response:
        body, http = await request.read(), request.app[_HTTP]
        async with http.request(request.method, upstream, data=body, headers=_end_to_end(request.headers)) as answer:
            return web.Response(body=await answer.read(), status=answer.status, headers=_end_to_end(answer.headers))

    app = web.Application(client_max_size=MAX_BYTES)
    app.router.add_route("*", "/mcp", forward)
    app.cleanup_ctx.append(_client)
    return app


async def _client(app: web.Application) -> AsyncIterator[None]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False) as http:
        app[_HTTP] = http
        yield


def _end_to_end(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP]


if __name__ == "__main__":
    uvloop.install()
    web.run_app(application(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
