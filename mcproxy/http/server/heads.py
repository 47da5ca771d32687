"""Heads of HTTP/1.1 messages: a request's as a mapping, or recognised as the last; a response's as bytes. Pure.

A client repeats its heads, with another `Content-Length` and other values of a few fields. One is recognised if it
equals, byte for byte but for those values, one that the parser has read; where a value might be read in two ways, it is
left to the parser.
Checks no field. Control characters are blanked on writing, so that a value never becomes another field.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

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

MAX_DIGITS: Final = 15
"""Digits of a length: more than any body needs, and fewer than the parser can count."""
GROWTH: Final = 256
"""Bytes that the values in a remembered head may be longer than they were when it was remembered."""
_END: Final = b"\r\n\r\n"
_CONTENT_LENGTH: Final = "content-length"
_LENGTH: Final = b"\r\ncontent-length:"


class HeadMemory(msgspec.Struct, frozen=True):
    """What an application worked out from the head of a request, and the object that it is valid for."""

    value: object
    valid_for: object


class Headers(dict[str, str]):
    """Header fields by their names in lower case: the first value of each; `all` has further ones.

    Requests of one connection whose heads are equal but for `Content-Length` share an instance once `Request.remember`
    was called.
    """

    __slots__ = ("_repeated",)

    def __init__(self, first: Mapping[str, str] = NONE, repeated: Sequence[HeaderLine] = ()) -> None:
        """`repeated`: all lines in their order, if a name came more than once."""
        super().__init__(first)
        self._repeated: Final = repeated

    @property
    def has_repeated(self) -> bool:
        """Whether a name came more than once."""
        return bool(self._repeated)

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
    read = {known.get(name) or _text(name).lower(): _value(value) for name, value in lines}
    if len(read) == len(lines):
        return Headers(read)
    return Headers.of((_text(name), _value(value)) for name, value in lines)


def _value(data: bytes) -> str:
    """The value of a field without the white space behind it, which is no part of it (RFC 9110, section 5.5).

    The parser takes off what is before it.
    """
    return data.rstrip(b" \t").decode("utf-8", "surrogateescape")


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def read_target(target: bytes) -> str:
    """The target of a request without scheme and host (RFC 9112, section 3.2.2: a server must accept whole URLs)."""
    if not target.startswith((b"/", b"*")):
        url = httptools.parse_url(target)
        target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
    return target.decode(errors="replace")


class KnownHead:
    """A head that is recognised by its bytes, but for the values of `Content-Length` and of the fields that vary."""

    __slots__ = (
        "_after_digits",
        "_before_digits",
        "_first",
        "_longest",
        "_original",
        "_parts",
        "cost",
        "fields",
        "is_chunked",
        "memory",
        "method",
        "target",
        "varying",
    )

    def __init__(self, request: HeadFacts, head: bytes, values: Sequence[FieldValue], varying: frozenset[str]) -> None:
        """`values`: where those of `Content-Length`, if it has one, and of `varying` stand in `head`."""
        self.method: Final = request.method
        self.target: Final = request.target
        self.fields = self._original = request.fields
        """Those of the request that came last with this head."""
        self.is_chunked: Final = "transfer-encoding" in request.fields
        self.varying: Final = varying
        self.memory: HeadMemory | None = None
        """See `Request.remember`."""
        starts, ends = [value.start for value in values], [value.end for value in values]
        remembered = (None if value.name == _CONTENT_LENGTH else head[value.start : value.end] for value in values)
        cuts = zip([0, *ends], [*starts, len(head)], strict=True)
        self._first, *behind = [head[end:start] for end, start in cuts]
        """What comes before the first value."""
        names = [value.name for value in values]
        self._parts: Final = tuple(zip(names, remembered, behind, strict=True))
        """Of each value: its field, what it was when the head was remembered (None for the length), what is behind."""
        self._longest: Final = len(head) + GROWTH
        self._before_digits = self._after_digits = b""
        """Of the head that came last, around the value of `Content-Length`; nothing if it has none."""
        self.cost: Final = 3 * self._longest + _PER_LINE * len(request.fields)
        """Estimated memory, in bytes: the head as it came, and as it was read."""

    def read(self, data: bytes) -> tuple[int, int] | None:
        """The length of the body and where it begins, if `data` begins with this head; `fields` are those in `data`.

        The length of a body in chunks is 0.
        """
        after, start = self._after_digits, len(self._before_digits)
        end = data.find(after, start, start + MAX_DIGITS + len(after))
        if end > start and data.startswith(self._before_digits) and (digits := data[start:end]).isdigit():
            return int(digits), end + len(after)  # all but the length is as in the last, as mostly
        return self._read_others(data)

    def _read_others(self, data: bytes) -> tuple[int, int] | None:
        """As `read`, if other values differ too."""
        start = len(self._first)
        if not data.startswith(self._first):
            return None
        fields, length, before, after = self._original, 0, b"", 0
        for name, last, behind in self._parts:
            end = data.find(behind, start, self._longest)
            if end < 0:
                return None
            value = data[start:end]
            if last is None:
                if not (value.isdigit() and len(value) <= MAX_DIGITS):
                    return None
                length, before, after = int(value), data[:start], end
            elif value != last:
                if not value.isascii() or not _is_plain(text := value.decode()):
                    return None
                fields = Headers(fields) if fields is self._original else fields
                fields[name] = text
            start = end + len(behind)
        self.fields, self._before_digits, self._after_digits = fields, before, data[after:start] if before else b""
        return length, start


def _is_plain(value: str) -> bool:
    """Whether any parser reads a value of ASCII as it stands (RFC 9110, section 5.5)."""
    return value.isprintable() and value != "" and value[0] != " " != value[-1]


class HeadFacts(Protocol):
    """What a remembered head is made of, beside its bytes."""

    method: str
    target: str
    fields: Headers


class FieldValue(NamedTuple):
    """Where in a head the value of a field is."""

    name: str
    """In lower case."""
    start: int
    end: int


def candidate(data: bytes, lines: int) -> bytes | None:
    """The head that `data` begins with, if it can be remembered: short, and just the `lines` that the parser read."""
    head = data[: data.find(_END, 0, LONGEST_KNOWN) + len(_END)]
    is_plain = head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == lines + 2
    return head if is_plain and lines <= MOST_LINES else None


def known_head(head: bytes, request: HeadFacts, varying: frozenset[str]) -> KnownHead | None:
    """A head to be recognised by its bytes, but for the values of `varying` fields; None if it cannot be."""
    names = {_CONTENT_LENGTH} if request.fields.has_repeated else {_CONTENT_LENGTH, *varying}
    values = [value for value in _values(head) if value.name in names]
    lengths = [head[value.start : value.end] for value in values if value.name == _CONTENT_LENGTH]
    has_length = _LENGTH in head.lower()
    if len(lengths) != has_length or not all(map(bytes.isdigit, lengths)):
        return None
    return KnownHead(request, head, values, varying)


def _values(head: bytes) -> Iterator[FieldValue]:
    """The values in a head that stand behind a colon and a space, in order."""
    start = 0
    for line in head.removesuffix(_END).split(b"\r\n"):
        name, separator, _ = line.partition(b": ")
        if separator and start:
            yield FieldValue(_text(name).lower(), start + len(name) + len(separator), start + len(line))
        start += len(line) + 2


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
