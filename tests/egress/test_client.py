"""Requests that are not MCP: what becomes of answers."""

from __future__ import annotations

import gzip
from contextlib import aclosing

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from mcproxy.egress.client import NotAnswered, OutgoingClient
from mcproxy.egress.egress import Egress
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


async def answer(body: bytes, coding: str, limit: int) -> bytes | None:
    """What is read of a body that a server sends in a coding, though it was asked for none."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {len(body)}\r\n\r\n"
            await stream.send(head.encode() + body)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/token"
        async with aclosing(OutgoingClient(Egress())) as client:
            with anyio.fail_after(GUARD):
                async with client.request("GET", url, {}) as response:
                    found = await response.read(limit)
        tasks.cancel_scope.cancel()
    return found


async def test_a_compressed_answer_is_decoded() -> None:
    assert await answer(gzip.compress(b'{"access_token":"t"}'), "gzip", 100) == b'{"access_token":"t"}'


async def test_a_compressed_answer_is_unpacked_no_further_than_the_limit() -> None:
    assert await answer(gzip.compress(bytes(10_000_000)), "gzip", 100_000) is None


async def test_an_answer_in_an_unknown_coding_is_refused_by_name() -> None:
    with pytest.raises(ExceptionGroup) as refused:
        await answer(b"x", "br", 100)
    assert refused.group_contains(NotAnswered, match="'br'")
