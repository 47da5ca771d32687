"""Bytes as an attacker writes them, and what comes back. Knows no rule of HTTP, and so can break each."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketStream

from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.headers import standard_headers
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import row_of

INITIALIZE: Final = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}},
    }
).encode()

META: Final = {
    "io.modelcontextprotocol/protocolVersion": LATEST,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "attacker", "version": "1"},
}


def post(
    body: bytes = INITIALIZE,
    *fields: bytes,
    target: bytes = b"/mcp",
    host: bytes = b"Host: localhost",
    length: bool = True,
    kind: bytes = b"application/json",
) -> bytes:
    """A request, with more `fields` in its head."""
    head = [
        b"POST " + target + b" HTTP/1.1",
        *([host] if host else []),
        b"Content-Type: " + kind,
        *fields,
        *([b"Content-Length: %d" % len(body)] if length else []),
    ]
    return b"\r\n".join([*head, b"", body])


def stateless(method: str, *, key: str | None = None, **params: object) -> bytes:
    """A request of 2026-07-28, alone in its envelope, with the headers that belong to it."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    mirrored = standard_headers(LATEST, row_of(method), {name: raw(value) for name, value in params.items()})
    fields = [f"{name}: {value}".encode() for name, value in mirrored.items()]
    fields += [f"Authorization: Bearer {key}".encode()] if key else []
    return post(json.dumps(message).encode(), *fields)


async def connected(url: str) -> SocketStream:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return await anyio.connect_tcp(parts.hostname, parts.port)


async def status(stream: SocketStream) -> int:
    """The status of the next response, as soon as its first line is there."""
    line = b""
    while b"\r\n" not in line:
        line += await stream.receive()
    return int(line.split()[1])


async def answer(url: str, request: bytes) -> bytes:
    """All that comes back for one request, up to the end of the connection, which the request asks for."""
    head, _, body = request.partition(b"\r\n\r\n")
    async with await connected(url) as stream:
        await stream.send(head + b"\r\nConnection: close\r\n\r\n" + body)
        return await until_closed(stream)


async def until_closed(stream: SocketStream) -> bytes:
    """What is received until the peer hangs up."""
    received = b""
    try:
        async for chunk in stream:
            received += chunk
    except anyio.BrokenResourceError:
        pass
    return received


def code(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


def said(response: bytes) -> Any:
    """The JSON of a response."""
    return json.loads(response.partition(b"\r\n\r\n")[2])
