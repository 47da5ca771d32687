"""The head of a request as text: what its parser found as bytes. Pure."""

from __future__ import annotations

from typing import Final

import httptools

from mcproxy.http.server.headers import Headers

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
