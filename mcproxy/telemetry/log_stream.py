"""Writes log lines to stderr without ever waiting for whoever reads them: what cannot be written at once is dropped.

A pipe that is not read, as hosts leave that of a child's stderr, holds 64 KiB; a write would then wait for ever, and
the whole gateway with it. Lines that were dropped are counted, and the count is logged once there is room again.
"""

from __future__ import annotations

import io
import os
import select
from contextlib import suppress
from typing import Final, TextIO, cast

import structlog

PIPE_BUF: Final = 4096
"""Bytes that a pipe takes without waiting if it is writable at all (pipe(7))."""


class LogStream(io.TextIOBase):
    """Takes whole lines. `stream` may be no file, as in tests, or closed: a line that fails is dropped as well."""

    def __init__(self, stream: TextIO) -> None:
        self._lines = _Unwaiting(stream)
        self._reports = structlog.wrap_logger(structlog.WriteLogger(cast(TextIO, self._lines)))

    def write(self, text: str) -> int:
        dropped = self._lines.take_dropped()
        if dropped:
            self._reports.warning("lines of the log were dropped: nobody read stderr", lines=dropped)
        return self._lines.write(text)

    def flush(self) -> None:
        self._lines.flush()


class _Unwaiting(io.TextIOBase):
    """Writes a line, or as much of one that it began as there is room for, and counts lines that it dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._rest = b""
        """The end of a line of which the beginning is written."""
        self._dropped = 0
        if self._descriptor is not None:
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLOUT)

    def write(self, text: str) -> int:
        if self._descriptor is None:
            with suppress(OSError):
                self._stream.write(text)
        elif self._is_ready(self._descriptor):
            self._rest = text.encode(errors="backslashreplace")
            self._write_rest(self._descriptor)
        else:
            self._dropped += 1
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def take_dropped(self) -> int:
        """How many lines were dropped and not reported yet; 0 while there is no room to report them."""
        if not self._dropped or self._descriptor is None or not self._is_ready(self._descriptor):
            return 0
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _is_ready(self, descriptor: int) -> bool:
        """Whether another line can be begun."""
        self._write_rest(descriptor)
        return not self._rest and self._has_room()

    def _write_rest(self, descriptor: int) -> None:
        while self._rest and self._has_room():
            try:
                self._rest = self._rest[os.write(descriptor, self._rest[:PIPE_BUF]) :]
            except OSError:
                self._rest = b""

    def _has_room(self) -> bool:
        return any(events & select.POLLOUT for _, events in self._poll.poll(0))


def _descriptor(stream: TextIO) -> int | None:
    """None for what is no file, and where the system cannot tell whether a file has room."""
    if not hasattr(select, "poll"):
        return None
    try:
        return stream.fileno()
    except OSError:
        return None
