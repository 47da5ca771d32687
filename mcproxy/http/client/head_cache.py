"""The head of a server's last response: mostly the next one differs in its `Content-Length` alone. Pure.

A response is recognised if it arrived whole and its head equals, byte for byte but for the digits of Content-Length,
one that the parser has read. Everything else is left to the parser.
"""

from __future__ import annotations

import re
from typing import Final

from mcproxy.http.client.headers import WITHOUT_BODY, ResponseHead

LONGEST: Final = 4096
"""Bytes of a head that is remembered."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})(?=[ \t]*(?:\r\n|\Z))", re.IGNORECASE)


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
