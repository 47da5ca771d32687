"""The addresses at which a server listens."""

from __future__ import annotations

import socket

import anyio
import pytest

from mcproxy.http import server as http_server

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("host", "reached"), [("::", {"127.0.0.1", "::1"}), ("[::1]", {"::1"}), ("127.0.0.1", {"127.0.0.1"})]
)
@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_a_server_listens_on_the_families_of_its_address(host: str, reached: set[str]) -> None:
    async def handle(request: http_server.Request) -> http_server.Response:
        return http_server.Response(204)

    def refuse(status: int, sentence: str) -> http_server.Response:
        return http_server.Response(status)

    bounds = http_server.Bounds(max_body=1, idle=60, write_timeout=3, connections=10, head_timeout=3)
    server = http_server.Server(handle, refuse, lambda: bounds)
    found = set()
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run)
        port = await server.listen(host, 0, None)
        for address in ("127.0.0.1", "::1"):
            try:
                socket.create_connection((address, port), 3).close()
            except ConnectionRefusedError:
                continue
            found.add(address)
        server.drain()
        tasks.cancel_scope.cancel()
    assert found == reached
