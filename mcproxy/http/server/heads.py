"""Heads of HTTP/1.1 messages: a request's fields as a mapping, and a response's head as bytes. Pure.

Checks no field. Control characters are blanked on writing, so that a value never becomes another field.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

import httptools

from mcproxy.http.headers import Headers

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
