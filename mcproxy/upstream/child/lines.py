"""Splits a byte stream into lines, in time linear in its length, with a limit for one line. Interprets no line."""

from __future__ import annotations


class LineTooLong(Exception):
    """A line is longer than the decoder's limit in bytes."""


class LineDecoder:
    """Takes chunks split anywhere; `limit` is the most bytes of one line."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, in order, without their line ends. Raises LineTooLong."""
        head, *rest = chunk.split(b"\n")
        self._keep(head)
        if not rest:
            return []
        lines = [b"".join(self._pending), *rest[:-1]]
        self._pending, self._size = [], 0
        self._keep(rest[-1])
        return lines

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            raise LineTooLong(f"a message is larger than {self._limit} bytes (max_message_bytes)")
        self._pending.append(part)
