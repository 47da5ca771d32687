"""Heads of HTTP/1.1 messages: a request's fields as a mapping, heads that come again, a response's as bytes. Pure.

A client repeats its heads, with another `Content-Length`. One is recognised if it equals, byte for byte but for those
digits, one that the parser has read; bodies that are framed in another way are left to the parser.
Checks no field. Control characters are blanked on writing, so that a value never becomes another field.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

import httptools
import msgspec

HeaderLine = tuple[str, str]

NONE: Final[Mapping[str, str]] = MappingProxyType({})
WITHOUT_BODY: Final = frozenset({204, 304})
"""Statuses of responses that have no body (RFC 9110, section 15)."""

_FORBIDDEN: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that no field's value may hold (RFC 9110, section 5.5)."""

_KNOWN: Final = {
    spelled.encode(): name
    for name in (
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-type",
        "host",
        "last-event-id",
        "origin",
        "transfer-encoding",
        "user-agent",
    )
    for spelled in (name, name.title())
}
"""Names that most requests have, by their usual spellings; others are decoded."""

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


class HeadMemory(msgspec.Struct, frozen=True):
    """What an application worked out from the head of a request, and the object that it is valid for."""

    value: object
    valid_for: object


class Headers(dict[str, str]):
    """Header fields by their names in lower case: the first value of each; `all` has further ones.

    An instance belongs to one connection. Requests whose heads are equal but for `Content-Length` share it once
    `Request.remember` was called.
    """

    __slots__ = ("_repeated", "memory")

    def __init__(self, first: Mapping[str, str] = NONE, repeated: Sequence[HeaderLine] = ()) -> None:
        """`repeated`: all lines in their order, if a name came more than once."""
        super().__init__(first)
        self._repeated: Final = repeated
        self.memory: HeadMemory | None = None
        """See `Request.remember`."""

    @classmethod
    def of(cls, lines: Iterable[HeaderLine]) -> Headers:
        """Make them from lines with names as they were spelled."""
        read = [(name.lower(), value) for name, value in lines]
        first = dict(reversed(read))
        return cls(first, read if len(first) < len(read) else ())

    def all(self, name: str) -> Sequence[str]:
        """Every value of a field, in order."""
        if self._repeated:
            return [value for key, value in self._repeated if key == name]
        return (self[name],) if name in self else ()

    def joined(self, name: str) -> str | None:
        """The values of a field that is a list, as one (RFC 9110, section 5.3)."""
        return ", ".join(self.all(name)) or None if self._repeated else self.get(name)


def read_fields(lines: list[tuple[bytes, bytes]]) -> Headers:
    """Header fields from a parser's lines. Never fails: bytes that are no UTF-8 become surrogates (PEP 383)."""
    known = _KNOWN
    read = {known.get(name) or _text(name).lower(): value.decode("utf-8", "surrogateescape") for name, value in lines}
    if len(read) == len(lines):
        return Headers(read)
    return Headers.of((_text(name), _text(value)) for name, value in lines)


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def read_target(target: bytes) -> str:
    """The target of a request without scheme and host (RFC 9112, section 3.2.2: a server must accept whole URLs)."""
    if not target.startswith((b"/", b"*")):
        url = httptools.parse_url(target)
        target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
    return target.decode(errors="replace")


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


def head(status: int, fields: Mapping[str, str], added: Mapping[str, str], *, framing: bytes, close: bool) -> bytes:
    """The head of a response. `framing`: the line that says where the body ends, or nothing."""
    start = _start(status, int(time.time()), tuple(fields.items()))
    if not (added or close):
        return start + framing + b"\r\n"
    end = b"Connection: close\r\n\r\n" if close else b"\r\n"
    return b"".join((start, framing, _lines(tuple(added.items())), end))


@lru_cache(256)
def _start(status: int, now: int, fields: tuple[tuple[str, str], ...]) -> bytes:
    """The status line, `Date` (RFC 9110, section 6.6.1) and `fields`; most are asked for again within a second."""
    line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nDate: {formatdate(now, usegmt=True)}\r\n"
    return line.encode() + _lines(fields)


@lru_cache(256)
def _lines(fields: tuple[tuple[str, str], ...]) -> bytes:
    lines = [f"{name}: {_FORBIDDEN.sub(' ', value)}\r\n" for name, value in fields]
    return "".join(lines).encode(errors="surrogateescape")
