"""What comes before the body of a response, as bytes. Pure, but for the date.

What would end a line early is blanked: what somebody said may become a field's value, and never another field.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

WITHOUT_BODY: Final = frozenset({204, 304})

_FORBIDDEN: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""In a field's value: RFC 9110, section 5.5."""


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
