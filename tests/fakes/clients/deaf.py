"""A client that sends and never reads: what it is sent stays in the kernel, which keeps little for it."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import anyio

ROOM: Final = 4096
"""Bytes that its kernel is asked to take."""
LONGEST: Final = 1000
"""Milliseconds that its thread outlives a test at most."""


class DeafClient:
    """`path` is where it posts and gets."""

    def __init__(self, connection: socket.socket, host: str, path: str) -> None:
        self._connection = connection
        self._host = host
        self._path = path

    def get(self, headers: Mapping[str, str]) -> None:
        self._send("GET", headers, b"")

    def post(self, headers: Mapping[str, str], message: Mapping[str, Any]) -> None:
        """May be repeated, whatever was answered."""
        body = json.dumps(message).encode()
        self._send("POST", {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}, body)

    async def disconnected(self) -> None:
        """Returns when the server has reset the connection."""
        poll = select.poll()
        poll.register(self._connection, 0)
        while not await anyio.to_thread.run_sync(poll.poll, LONGEST, abandon_on_cancel=True):
            pass

    def _send(self, method: str, headers: Mapping[str, str], body: bytes) -> None:
        fields = {"Host": self._host, "Accept": "application/json, text/event-stream", **headers}
        lines = [f"{method} {self._path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        self._connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


@contextmanager
def deaf_client(url: str) -> Iterator[DeafClient]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM)
        connection.connect((parts.hostname, parts.port))
        yield DeafClient(connection, parts.netloc, parts.path)
