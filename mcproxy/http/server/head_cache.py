"""Heads that were read before: a client says the same with each request, but for how long its body is.

What is remembered was read by the parser, line by line, and differs in the digits of `Content-Length` alone. Judges
nothing, and knows no head whose body has another end than that.
"""

from __future__ import annotations

from typing import Final

from mcproxy.http.server.headers import Headers

MOST_KNOWN: Final = 8
"""Heads of one connection that are remembered."""
LONGEST_KNOWN: Final = 4 * 1024
"""Bytes of such a head."""
MOST_LINES: Final = 32
"""Fields in it: short ones take many times as much room as they have bytes."""
MOST_BYTES: Final = 16 * 1024
"""Bytes that the remembered heads of one connection may take together (see `KnownHead.cost`)."""

_PER_LINE: Final = 160
"""Bytes that a field takes beside its text: two strings and a place in a dict."""

_DIGITS: Final = 15
"""Of a length: more than any body has, and fewer than its parser can count."""
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length: "


class KnownHead:
    """What was said before the length and behind it, up to the body, and what was read of that."""

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
        """Whether `data` begins with this head, whatever follows it."""
        if not data.startswith(self.before):
            return False
        digits, behind, _ = data[len(self.before) :].partition(self._behind)
        return bool(behind) and len(digits) <= _DIGITS and digits.isdigit()

    def body_in(self, data: bytes) -> tuple[int, bytes] | None:
        """The length of the body and what has come of it, where `data` begins with this head and with nothing else.

        Of `data` it must be known that it begins with `before`. None as well where more than the body has come.
        """
        digits, behind, body = data[len(self.before) :].partition(self._behind)
        if not behind or len(digits) > _DIGITS or not digits.isdigit():
            return None
        length = int(digits)
        return None if len(body) > length else (length, body)


class ParsedHead:
    """The last head that the parser read and that was accepted, where it cannot be known by its bytes."""

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
    """The head that `data` begins with, of which a parser read the rest, and so many lines behind the first.

    None where it is no head to be known again. A head is taken for what the parser took it for, or not at all: it must
    consist of just the lines that it read, of which one is the length's.
    """
    head = data[: data.find(_END, 0, LONGEST_KNOWN) + len(_END)]
    length = head.lower().find(_LENGTH) + len(_LENGTH)
    behind = head.find(b"\r\n", length)
    is_short = lines <= MOST_LINES
    is_plain = head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == lines + 2
    if not (is_short and is_plain and head[length:behind].isdigit()):
        return None
    return KnownHead(head[:length], head[behind:], method, target, fields)
