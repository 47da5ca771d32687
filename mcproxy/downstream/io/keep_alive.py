"""Keep-alive comments for idle event streams, so that proxies on the way do not close them (requirement R7).

One timer serves all streams, which may be many thousands. Decides when a stream is due; the stream writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Final, Protocol

ROUNDS: Final = 16
"""Checks for idle streams within an interval."""
BATCH: Final = 100
"""Streams that are written to before other callbacks of the loop get a turn."""


class IdleStream(Protocol):
    """An event stream as the keep-alive timer sees it."""

    written: float
    """The time of the last write, by the clock of the loop."""

    def keep_alive(self) -> None:
        """Writes an SSE comment, which readers skip."""


class KeepAlive:
    """`interval` returns the configured seconds that a stream may be idle at most."""

    def __init__(self, interval: Callable[[], float]) -> None:
        self._interval = interval
        self._streams: set[IdleStream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: IdleStream) -> None:
        """Keeps a stream alive from now on, until `discard`."""
        self._streams.add(stream)
        if self._timer is None:
            self._set_timer()

    def discard(self, stream: IdleStream) -> None:
        """Idempotent."""
        self._streams.discard(stream)
        if self._timer is not None and not self._streams:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        # In an empty context: the timer outlives the call that the first stream answers.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval() / ROUNDS, self._look, context=Context())

    def _look(self) -> None:
        self._set_timer()
        # Streams that would be idle for too long by the next round.
        since = asyncio.get_running_loop().time() - self._interval() * (1 - 1 / ROUNDS)
        self._write([stream for stream in self._streams if stream.written <= since])

    def _write(self, due: list[IdleStream]) -> None:
        """Writes to one batch now, and to the rest in the next turns of the loop."""
        for stream in due[:BATCH]:
            if stream in self._streams:
                stream.keep_alive()
        if len(due) > BATCH:
            asyncio.get_running_loop().call_soon(self._write, due[BATCH:])
