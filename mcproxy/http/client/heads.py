"""Heads of HTTP/1.1 messages: a request's written, and a response's read. Pure.

Refuses control characters in a request's fields, so that a value never becomes another field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from yarl import URL

from mcproxy.http.headers import Headers

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""A field's name (RFC 9110, section 5.1)."""
_FORBIDDEN: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that no field's value may hold (RFC 9110, section 5.5)."""
_TIMEOUT: Final = re.compile(r"(?:^|[,\s])timeout[ \t]*=[ \t]*([0-9]{1,9})\b", re.IGNORECASE)
_ON_THE_WAY: Final = 1.0
"""Seconds that a request may take to its server, which must not have closed the connection when it arrives."""
WITHOUT_BODY: Final = frozenset({204, 304})
"""Statuses of responses that have no body, even if their heads declare one (RFC 9110, section 15)."""


class ResponseHead(msgspec.Struct, frozen=True):
    """The status and header fields of a response; the first value of each field."""

    status: int
    reason: str
    fields: Headers
    """By their names in lower case, without `Content-Length`."""
    content_type: str
    """The media type without parameters, in lower case."""
    content_encoding: str
    """How the body is compressed, in lower case; empty if it is not (RFC 9110, section 8.4)."""
    ends_with_connection: bool
    """True if only the end of the connection says where the body ends (RFC 9112, section 6.3)."""
    cookies: tuple[str, ...] = ()
    """The value of each `Set-Cookie`."""
    kept_for: float = math.inf
    """Seconds for which its connection may be used again: less than its server keeps it idle, where that says so."""


NO_HEAD: Final = ResponseHead(0, "", Headers(), "", "", ends_with_connection=False)
"""The head of a response that has not begun."""


def read_head(status: int, reason: bytes, fields: Sequence[tuple[bytes, bytes]]) -> ResponseHead:
    """A response's head from what the parser read."""
    # RFC 9110, section 5.5: white space behind a value is no part of it; the parser takes off what is before.
    read = Headers.of(
        (name.decode("utf-8", "replace"), value.rstrip(b" \t").decode("utf-8", "replace")) for name, value in fields
    )
    framed = read.pop("content-length", None) is not None or "transfer-encoding" in read
    content_type = read.get("content-type", "").partition(";")[0].strip().lower()
    content_encoding = read.get("content-encoding", "").strip().lower()
    lasts = not framed and status not in WITHOUT_BODY
    return ResponseHead(
        status,
        reason.decode("utf-8", "replace"),
        read,
        content_type,
        "" if content_encoding == "identity" else content_encoding,
        lasts,
        tuple(read.all("set-cookie")),
        _kept_for(read.get("keep-alive", "")),
    )


def _kept_for(keep_alive: str) -> float:
    """Seconds for which a server keeps an idle connection, by its field `Keep-Alive` (RFC 2068, section 19.7.1.1).

    Node's and Tomcat send it.
    """
    said = _TIMEOUT.search(keep_alive)
    if said is None:
        return math.inf
    timeout = float(said[1])
    return max(timeout - _ON_THE_WAY, timeout / 2)


def write_head(method: str, url: URL, fields: Mapping[str, str]) -> bytes:
    """The head of a request without its last line. Raises ValueError for names and values that no field may have."""
    check_names(fields)
    start = f"{method} {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n".encode()
    return start + write_fields(fields)


def write_fields(fields: Mapping[str, str]) -> bytes:
    """More lines of a head, whose names `check_names` let pass. Raises ValueError for values that no field may have."""
    lines = ""
    for name, value in fields.items():
        # Nothing that is printable is forbidden, as most values are: asking that costs less than to search.
        if not (value.isprintable() or _FORBIDDEN.search(value) is None):
            raise _unfit(name)
        lines += f"{name}: {value}\r\n"
    return lines.encode()


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError for a name that no field may have."""
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise _unfit(name)


def _unfit(name: str) -> ValueError:
    return ValueError(f"the header {name!r} holds characters that no header may")


def write_request(head: bytes, body: bytes | None) -> bytes:
    """A whole request. `head` is from `write_head`."""
    return b"%b\r\n" % head if body is None else b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
