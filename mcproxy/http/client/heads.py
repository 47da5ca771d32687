"""Heads of HTTP/1.1 messages: a request's written, a response's read, and a server's last one recognised. Pure.

Refuses control characters in a request's fields, so that a value never becomes another field. A response is recognised
if it arrived whole and its head equals, byte for byte but for the digits of Content-Length, one that the parser has
read: mostly that alone differs. Everything else is left to the parser.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from yarl import URL

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""A field's name (RFC 9110, section 5.1)."""
_FORBIDDEN: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that no field's value may hold (RFC 9110, section 5.5)."""
_KNOWN: Final = {
    spelled.encode(): name
    for name in ("cache-control", "content-length", "content-type", "date", "server")
    for spelled in (name, name.title())
}
"""Names that most responses have, by their usual spellings; others are decoded."""
_TIMEOUT: Final = re.compile(r"(?:^|[,\s])timeout[ \t]*=[ \t]*([0-9]{1,9})\b", re.IGNORECASE)
_ON_THE_WAY: Final = 1.0
"""Seconds that a request may take to its server, which must not have closed the connection when it arrives."""
WITHOUT_BODY: Final = frozenset({204, 304})
"""Statuses of responses that have no body, even if their heads declare one (RFC 9110, section 15)."""

LONGEST: Final = 4096
"""Bytes of a head that is remembered."""
MAX_DIGITS: Final = 15
"""Digits of a body's length that is recognised."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,%d})(?=[ \t]*(?:\r\n|\Z))" % MAX_DIGITS, re.IGNORECASE)


class ResponseHead(msgspec.Struct, frozen=True):
    """The status and header fields of a response; the first value of each field."""

    status: int
    reason: str
    fields: Mapping[str, str]
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


NO_HEAD: Final = ResponseHead(0, "", {}, "", "", ends_with_connection=False)
"""The head of a response that has not begun."""


def read_head(status: int, reason: bytes, fields: Sequence[tuple[bytes, bytes]]) -> ResponseHead:
    """A response's head from what the parser read."""
    read: dict[str, str] = {}
    cookies: list[str] = []
    for name, value in fields:
        key = _KNOWN.get(name) or name.decode("utf-8", "replace").lower()
        # RFC 9110, section 5.5: white space behind a value is no part of it; the parser takes off what is before.
        text = value.rstrip(b" \t").decode("utf-8", "replace")
        read.setdefault(key, text)
        if key == "set-cookie":
            cookies.append(text)
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
        tuple(cookies),
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


class HeadCache:
    """The last head of one server; all connections to it share it."""

    __slots__ = ("_after", "_before", "_head")

    def __init__(self) -> None:
        self._head: ResponseHead | None = None
        self._before = self._after = b""
        """The bytes before and behind the digits."""

    def recognised(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """The head and the body, if `data` is one whole response with the remembered head."""
        if self._head is None:
            return None
        head, end, body = data.partition(b"\r\n\r\n")
        if not end or head != b"%b%d%b" % (self._before, len(body), self._after):
            return None
        return self._head, body

    def begun(self, data: bytes) -> tuple[ResponseHead, bytes, int] | None:
        """The head, what arrived of the body, and how many bytes are missing, if `data` begins a longer response."""
        if self._head is None:
            return None
        end = data.find(b"\r\n\r\n", 0, LONGEST + 4)
        if end < 0 or not (data.startswith(self._before, 0, end) and data.endswith(self._after, 0, end)):
            return None
        length = data[len(self._before) : end - len(self._after)]
        if not length.isdigit() or len(length) > MAX_DIGITS:
            return None
        body = data[end + 4 :]
        missing = int(length) - len(body)
        return (self._head, body, missing) if missing > 0 else None

    def remember(self, head: ResponseHead, data: bytes) -> None:
        """Remember `head`. `data` is the whole response as it arrived, and nothing else but interim responses."""
        if head.status in WITHOUT_BODY or "transfer-encoding" in head.fields:
            return
        said, _, body = data.partition(b"\r\n\r\n")
        # Where the first head is that of an interim response (RFC 9110, section 15.2), what follows it is no body.
        if len(said) > LONGEST or not said.startswith(b"HTTP/1.1 %d " % head.status):
            return
        lengths = list(_LENGTH.finditer(said))
        if len(lengths) != 1 or int(lengths[0][1]) != len(body):
            return
        self._head = head
        self._before, self._after = said[: lengths[0].start(1)], said[lengths[0].end(1) :]
