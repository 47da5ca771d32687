"""How the answers of one server begin: mostly as the one before did, but for the length of what follows. Pure.

Reads no head itself: what it recognises is byte for byte, but for the digits of Content-Length, what a parser found to
be one whole answer before. Whatever differs, or is not all of an answer, or more than it, is the parser's to judge.
"""

from __future__ import annotations

import re
from typing import Final

from mcproxy.upstream.wire.heads import WITHOUT_BODY, Head

LONGEST: Final = 4096
"""Bytes of a head that is remembered."""
_MOST_DIGITS: Final = 15
"""Of a length: no overflow is near."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,%d})(?=[ \t]*\r\n)" % _MOST_DIGITS, re.IGNORECASE)


class Recognition:
    """Of one server, which all connections to it share. It remembers one head: the last."""

    __slots__ = ("_after", "_before", "_head")

    def __init__(self) -> None:
        self._head: Head | None = None
        self._before = self._after = b""

    def recognised(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the body, where `data` is one whole answer that begins as the one remembered did."""
        if self._head is None or not data.startswith(self._before):
            return None
        start = len(self._before)
        end = data.find(self._after, start, start + _MOST_DIGITS + len(self._after))
        if end < 0:
            return None
        digits, body = data[start:end], end + len(self._after)
        if not digits.isdigit() or int(digits) != len(data) - body:
            return None
        return self._head, data[body:]

    def remember(self, head: Head, data: bytes) -> None:
        """Takes note of `data`, in which a parser found one whole answer, with this head, and no other final one."""
        end = data.find(b"\r\n\r\n", 0, LONGEST) + 4
        lengths = list(_LENGTH.finditer(data, 0, end)) if end > 3 else []
        # Where the first head is that of an interim answer (RFC 9110, section 15.2), what follows it is no body.
        if len(lengths) != 1 or head.status in WITHOUT_BODY or not data.startswith(b"HTTP/1.1 %d " % head.status):
            return
        if "transfer-encoding" in head.fields or int(lengths[0][1]) != len(data) - end:
            return
        self._head = head
        self._before, self._after = data[: lengths[0].start(1)], data[lengths[0].end(1) : end]
