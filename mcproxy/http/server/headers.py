"""Header fields and heads, read and written: a request's from what its parser found, a response's as bytes. Pure.

Judges no field. What would end a line early is blanked on writing: a peer's text may become a field's value, and never
another field.
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

_FORBIDDEN: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""In a field's value: RFC 9110, section 5.5."""

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
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
        "mcp-session-id",
        "origin",
        "transfer-encoding",
        "user-agent",
    )
    for spelled in (name, name.title(), name.title().replace("Mcp-Protocol", "MCP-Protocol"))
}
"""Names that come with most requests, as they are mostly spelled."""


class HeadMemory(msgspec.Struct, frozen=True):
    """What an application worked out from the head of a request, and the object that it is valid for."""

    value: object
    valid_for: object


class Headers(dict[str, str]):
    """The first value of each name, which is in lower case; of names that came more than once, `all` knows the rest.

    They belong to one connection. Requests whose heads are equal but for `Content-Length` share one object from
    `Request.remember` on.
    """

    __slots__ = ("_repeated", "memory")

    def __init__(self, first: Mapping[str, str] = NONE, repeated: Sequence[HeaderLine] = ()) -> None:
        """`repeated` are all lines in their order, where a name came more than once."""
        super().__init__(first)
        self._repeated: Final = repeated
        self.memory: HeadMemory | None = None
        """See `Request.remember`."""

    @classmethod
    def of(cls, lines: Iterable[HeaderLine]) -> Headers:
        """Of names as they are spelled."""
        read = [(name.lower(), value) for name, value in lines]
        first = dict(reversed(read))
        return cls(first, read if len(first) < len(read) else ())

    def all(self, name: str) -> Sequence[str]:
        if self._repeated:
            return [value for key, value in self._repeated if key == name]
        return (self[name],) if name in self else ()

    def joined(self, name: str) -> str | None:
        """The value of a field that is a list, whose members may have come in several lines (RFC 9110, 5.3)."""
        return ", ".join(self.all(name)) or None if self._repeated else self.get(name)


def read_fields(lines: list[tuple[bytes, bytes]]) -> Headers:
    """By names in lower case. Raises nothing: what is no text stands for itself (PEP 383)."""
    known = _KNOWN
    read = {known.get(name) or _text(name).lower(): value.decode("utf-8", "surrogateescape") for name, value in lines}
    if len(read) == len(lines):
        return Headers(read)
    return Headers.of((_text(name), _text(value)) for name, value in lines)


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def read_target(target: bytes) -> str:
    """RFC 9112, section 3.2: a server must take whole URLs as well, as proxies are sent them."""
    if not target.startswith((b"/", b"*")):
        url = httptools.parse_url(target)
        target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
    return target.decode(errors="replace")


def head(status: int, fields: Mapping[str, str], added: Mapping[str, str], *, framing: bytes, close: bool) -> bytes:
    """`framing` is the line that says how long the body is."""
    start = _start(status, int(time.time()), tuple(fields.items()))
    if not (added or close):
        return start + framing + b"\r\n"
    end = b"Connection: close\r\n\r\n" if close else b"\r\n"
    return b"".join((start, framing, _lines(tuple(added.items())), end))


@lru_cache(256)
def _start(status: int, now: int, fields: tuple[tuple[str, str], ...]) -> bytes:
    """RFC 9110, section 6.6.1: who has a clock MUST send the date."""
    line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nDate: {formatdate(now, usegmt=True)}\r\n"
    return line.encode() + _lines(fields)


@lru_cache(256)
def _lines(fields: tuple[tuple[str, str], ...]) -> bytes:
    lines = [f"{name}: {_FORBIDDEN.sub(' ', value)}\r\n" for name, value in fields]
    return "".join(lines).encode(errors="surrogateescape")
