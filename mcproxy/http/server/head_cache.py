"""Heads of requests that one connection remembers: a client repeats them, with another `Content-Length`.

A head is recognised if it equals, byte for byte but for the digits of `Content-Length`, one that the parser has read.
Bodies that are framed in another way are left to the parser.
"""

from __future__ import annotations

from typing import Final

from mcproxy.http.server.headers import Headers

MOST_KNOWN: Final = 8
"""Heads that one connection remembers."""
LONGEST_KNOWN: Final = 4 * 1024
"""Bytes of a head that is remembered."""
MOST_LINES: Final = 32
"""Fields of a head that is remembered: short ones take many times their bytes in memory."""
MOST_BYTES: Final = 16 * 1024
"""Bytes that the remembered heads of one connection may take together (see `KnownHead.cost`)."""

_PER_LINE: Final = 160
"""Bytes that a field takes beside its text: two strings and a place in a dict."""

_DIGITS: Final = 15
"""Digits of a length: more than any body needs, and fewer than the parser can count."""
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length: "


class KnownHead:
    """A head that is recognised by its bytes before and behind the digits of `Content-Length`."""

    __slots__ = ("_behind", "before", "cost", "fields", "method", "target")

    def __init__(self, before: bytes, behind: bytes, method: str, target: str, fields: Headers) -> None:
        self.before: Final = before
        self.method: Final = method
        self.target: Final = target
        self.fields: Final = fields
        self._behind: Final = behind
        self.cost: Final = 2 * (len(before) + len(behind)) + _PER_LINE * len(fields)
        """Estimated memory, in bytes: the head as it came, and as it was read."""

    def begins(self, data: bytes) -> bool:
        """True if `data` begins with this head; anything may follow."""
        if not data.startswith(self.before):
            return False
        digits, behind, _ = data[len(self.before) :].partition(self._behind)
        return bool(behind) and len(digits) <= _DIGITS and digits.isdigit()

    def body_in(self, data: bytes) -> tuple[int, bytes] | None:
        """The length of the body and what arrived of it, if `data` is this head and at most its body; else None.

        `data` must begin with `before`.
        """
        digits, behind, body = data[len(self.before) :].partition(self._behind)
        if not behind or len(digits) > _DIGITS or not digits.isdigit():
            return None
        length = int(digits)
        return None if len(body) > length else (length, body)


class ParsedHead:
    """A head that is recognised by its lines, once the parser has read them: it has no length, or came in pieces."""

    __slots__ = ("fields", "lines", "method", "target")

    def __init__(self, method: str, target: bytes, lines: list[tuple[bytes, bytes]], fields: Headers) -> None:
        self.method: Final = method
        self.target: Final = target
        self.lines: Final = lines
        self.fields: Final = fields

    def is_head(self, method: str, target: bytes, lines: list[tuple[bytes, bytes]]) -> bool:
        return self.lines == lines and self.target == target and self.method == method


RememberedHead = KnownHead | ParsedHead


def known_head(data: bytes, lines: int, method: str, target: str, fields: Headers) -> KnownHead | None:
    """The head that `data` begins with, to be recognised by its bytes; None if it cannot be.

    `lines` is the number of lines that the parser read behind the request line. The head must consist of just these,
    one of them `Content-Length`: it is remembered as the parser took it, or not at all.
    """
    head = data[: data.find(_END, 0, LONGEST_KNOWN) + len(_END)]
    length = head.lower().find(_LENGTH) + len(_LENGTH)
    behind = head.find(b"\r\n", length)
    is_short = lines <= MOST_LINES
    is_plain = head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == lines + 2
    if not (is_short and is_plain and head[length:behind].isdigit()):
        return None
    return KnownHead(head[:length], head[behind:], method, target, fields)
