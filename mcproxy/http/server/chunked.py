"""A response whose length nobody knows yet: its head, its pieces as they come, and its end. Reads nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class ChunkSink(Protocol):
    """The connection that it goes by."""

    full: bool
    """Whether its client should first take what was written."""

    def streamed(self) -> None:
        """Hears, once, that all is written."""

    def reset(self) -> None:
        """Hangs up."""


class ChunkedBody:
    """Implements `messages.Chunks`. A client of HTTP/1.0 knows no chunks: the end of the connection is their end."""

    def __init__(self, carrier: ChunkSink, transport: asyncio.Transport, start: bytes, *, chunked: bool) -> None:
        self.ready: Callable[[], None] = _nothing
        self.gone: Callable[[], None] = _nothing
        self.over = False
        self._carrier = carrier
        self._transport = transport
        self._start = start
        """The head, until it goes with the first piece: each write is a call of the system."""
        self._chunked = chunked

    @property
    def full(self) -> bool:
        return self._carrier.full

    def write(self, data: bytes) -> None:
        if not self.over:
            start, self._start = self._start, b""
            self._transport.write(start + self._framed(data))

    def end(self, data: bytes = b"") -> None:
        if not self.over:
            self.over = True
            end = b"0\r\n\r\n" if self._chunked else b""
            self._transport.write(self._start + self._framed(data) + end)
            self._carrier.streamed()

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if data and self._chunked else data

    def reset(self) -> None:
        self._carrier.reset()

    def leave(self) -> None:
        if not self.over:
            self.over = True
            self.gone()


def _nothing() -> None:
    return
