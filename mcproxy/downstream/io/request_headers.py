"""What the header fields of a request say of its message and of the answer: read once for as long as they are the same.

Judges nothing, and depends on nothing else.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mcproxy.downstream.io.responses import JSON, Accepted, read_accept
from mcproxy.http import server as http
from mcproxy.protocol.eras import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from mcproxy.protocol.headers import VERSION

SESSION_HEADER: Final = "Mcp-Session-Id"

_SESSION: Final = SESSION_HEADER.lower()
_VERSION: Final = VERSION.lower()


class RequestHeaders(msgspec.Struct, frozen=True):
    content_type: str
    """The media type alone, in lower case; empty where none is said."""
    encoding: str
    """Of the body."""
    is_readable: bool
    """Whether a body like that is read here."""
    accepted: Accepted
    version: str | None
    """That of the protocol; several, where it came more than once."""
    is_stateless: bool
    """Whether the version is one of the stateless era."""
    fits_sessions: bool
    """Whether the version is one of a session, or none is named."""
    session: str | None


def request_headers(fields: http.Headers) -> RequestHeaders:
    found = fields.noted.get(RequestHeaders)
    if found is None:
        found = fields.noted[RequestHeaders] = _read(fields)
    return found


def _read(fields: http.Headers) -> RequestHeaders:
    version = fields.joined(_VERSION)
    content_type = fields.get("content-type", "").partition(";")[0].strip().lower()
    encoding = fields.get("content-encoding", "identity").lower()
    return RequestHeaders(
        content_type=content_type,
        encoding=encoding,
        is_readable=content_type == JSON and encoding == "identity",
        accepted=read_accept(fields.joined("accept")),
        version=version,
        is_stateless=fields.get(_VERSION) in STATELESS_VERSIONS,
        fits_sessions=version is None or version in HANDSHAKE_VERSIONS,
        session=fields.get(_SESSION),
    )
