"""Writes log lines to stderr without ever waiting for whoever reads them; what a slow reader leaves waits in memory.

A pipe that is not read, as hosts leave that of a child's stderr, holds 64 KiB; a write would then wait for ever, and
the whole gateway with it. Up to MAX_WAITING bytes are written by a thread as there is room for them. Lines beyond that
are dropped, and their number is logged once half of what waits has been read.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Final, TextIO, cast

import structlog

PIPE_BUF: Final = 4096
"""Bytes that a pipe takes without waiting if it is writable at all (pipe(7))."""
MAX_WAITING: Final = 4 * 2**20
"""Bytes that wait for a slow reader at most."""
LAST_WORDS: Final = 0.5
"""Seconds that a process which ends waits for lines to be read."""


@lru_cache(maxsize=1)
def log_stream(stream: TextIO) -> LogStream:
    """The one LogStream of a stream, whenever logs are configured anew: two would write into each other's lines."""
    lines = LogStream(stream)
    atexit.register(lines.finish, LAST_WORDS)
    return lines


class LogStream(io.TextIOBase):
    """Takes whole lines, from any thread.

    `stream` may be no file, as in tests, or closed: a line that fails is dropped as well.
    """

    def __init__(self, stream: TextIO) -> None:
        self._lines = _Unwaiting(stream, self._report)
        self._reports = structlog.wrap_logger(structlog.WriteLogger(cast(TextIO, self._lines)))

    def write(self, text: str) -> int:
        self._report()
        return self._lines.write(text)

    def flush(self) -> None:
        self._lines.flush()

    def finish(self, within: float) -> None:
        """Waits until all is written, for `within` seconds at most."""
        self._lines.finish(within)

    def _report(self) -> None:
        dropped = self._lines.take_dropped()
        if dropped:
            self._reports.warning("lines of the log were dropped: nobody read stderr", lines=dropped)


class _Unwaiting(io.TextIOBase):
    """Writes a line at once, or has it wait, and counts those that it dropped; `on_room` once nothing waits any more.

    Either a thread writes, while anything waits, or whoever has a line does.
    """

    def __init__(self, stream: TextIO, on_room: Callable[[], None]) -> None:
        self._stream = stream
        self._on_room = on_room
        self._descriptor = _descriptor(stream)
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._writer: threading.Thread | None = None
        """Writes what waits; None while nothing does."""
        self._dropped = 0
        if self._descriptor is not None:
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLOUT)

    def write(self, text: str) -> int:
        if self._descriptor is None:
            with suppress(OSError):
                self._stream.write(text)
            return len(text)
        line = text.encode(errors="backslashreplace")
        with self._lock:
            if not self._has_room_for(len(line)):
                self._dropped += 1
                return len(text)
            self._waiting += line
            if self._writer is None:
                self._write_some(self._descriptor)
            if self._waiting and self._writer is None:
                self._writer = self._started_writer(self._descriptor)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def finish(self, within: float) -> None:
        """As `LogStream.finish`."""
        with self._lock:
            writer = self._writer
        if writer is not None:
            writer.join(within)

    def take_dropped(self) -> int:
        """How many lines were dropped and not reported yet; 0 while there is no room to go on."""
        with self._lock:
            if not self._dropped or len(self._waiting) > MAX_WAITING // 2:
                return 0
            dropped, self._dropped = self._dropped, 0
            return dropped

    def _has_room_for(self, length: int) -> bool:
        # After the first that was dropped all are, until that was reported: one gap, and not one in two lines.
        return not self._dropped and len(self._waiting) + length <= MAX_WAITING

    def _started_writer(self, descriptor: int) -> threading.Thread | None:
        writer = threading.Thread(target=self._write_all, args=(descriptor,), daemon=True)
        try:
            writer.start()
        except RuntimeError:
            return None  # The system has no thread to give now: the next line goes on with what waits.
        return writer

    def _write_some(self, descriptor: int) -> None:
        """Writes what can be written without waiting."""
        while self._waiting and self._poll.poll(0):
            del self._waiting[: _written(descriptor, self._waiting[:PIPE_BUF])]

    def _write_all(self, descriptor: int) -> None:
        written = 0
        while True:
            with self._lock:
                del self._waiting[:written]
                if not self._waiting:
                    self._writer = None
                    break
                piece = self._waiting[:PIPE_BUF]
            self._poll.poll()
            written = _written(descriptor, piece)
        self._on_room()


def _written(descriptor: int, piece: bytearray) -> int:
    """How many bytes of a piece were written; all where it fails, since nobody will ever read them."""
    try:
        return os.write(descriptor, piece)
    except BlockingIOError:
        return 0
    except OSError:
        return len(piece)


def _descriptor(stream: TextIO) -> int | None:
    """None for what is no file, and where the system cannot tell whether a file has room."""
    if not hasattr(select, "poll"):
        return None
    try:
        return stream.fileno()
    except OSError:
        return None
