"""Write the body of a response whose length is unknown: in chunks, or for HTTP/1.0 up to the end of the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class ChunkSink(Protocol):
    """What a chunked body needs of its connection."""

    full: bool
    """True while the client has not taken enough of what was written."""
    written: int
    """Bytes of the last piece that was written."""

    def stream_ended(self) -> None:
        """Take note that all of the body is written. Called once."""

    def reset(self) -> None:
        """Reset the connection."""


class ChunkedBody:
    """Implements `messages.Chunks`. A client of HTTP/1.0 reads no chunks: the connection's end is the body's."""

    def __init__(
        self, connection: ChunkSink, transport: asyncio.Transport, head: bytes, *, chunked: bool, is_last: bool
    ) -> None:
        self.ready: Callable[[], None] = _do_nothing
        self.on_disconnect: Callable[[], None] = _do_nothing
        self.has_ended = False
        self.is_last = is_last
        """True if the connection closes behind it."""
        self._connection = connection
        self._transport = transport
        self._head = head
        """Kept until the first piece, since each write is a system call."""
        self._chunked = chunked

    @property
    def full(self) -> bool:
        return self._connection.full

    def write(self, data: bytes) -> None:
        if not self.has_ended:
            head, self._head = self._head, b""
            self._connection.written = len(data)
            self._transport.write(head + self._framed(data))

    def end(self, data: bytes = b"") -> None:
        if not self.has_ended:
            self.has_ended = True
            end = b"0\r\n\r\n" if self._chunked else b""
            self._connection.written = len(data)
            self._transport.write(self._head + self._framed(data) + end)
            self._connection.stream_ended()

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if data and self._chunked else data

    def reset(self) -> None:
        self._connection.reset()

    def disconnected(self) -> None:
        """End it, since the client takes no more."""
        if not self.has_ended:
            self.has_ended = True
            self.on_disconnect()


def _do_nothing() -> None:
    return
