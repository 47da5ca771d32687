"""The twin of `mcproxy.upstream.requester`: what is said of servers that cannot be reached."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from prometheus_client import CollectorRegistry
from yarl import URL

from mcproxy.settings import UpstreamSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import NotAccepted
from mcproxy.upstream.requester import Requester, connection_pool
from tests.ports import free_port
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def requester() -> AsyncIterator[Requester]:
    spec = UpstreamSettings(name="u", prefix="u", url="http://127.0.0.1/mcp")
    context = LinkContext(spec, Metrics(CollectorRegistry()), lambda change: None)
    async with connection_pool(context) as http:
        yield Requester(http, context)


async def complaint(url: str) -> str:
    """What is said of a request that found nobody."""
    async with requester() as it:
        with pytest.raises(NotAccepted) as refused, anyio.fail_after(GUARD):
            await it.request("POST", URL(url), ())
        return str(refused.value)


async def test_r46_a_refused_connection_is_told_once_and_in_our_words() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert await complaint(f"{url}/mcp") == f"no connection to {url}: Connection refused"


async def test_r46_a_server_without_tls_is_told_as_that() -> None:
    async def greet(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, greet)
        said = await complaint(f"https://127.0.0.1:{port}/mcp")
        tasks.cancel_scope.cancel()
    assert said.startswith(f"no connection to https://127.0.0.1:{port}: it does not speak TLS as we do: ")
    assert said.count("127.0.0.1") == 1
