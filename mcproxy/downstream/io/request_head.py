"""What a request's head says, read once for as long as a connection repeats it, and what handlers are told of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import msgspec

from mcproxy.access.identity import Identified, bearer_token
from mcproxy.call.identity import ForwardedCredentials, InboundToken, Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.open_streams import IdentifyAgain
from mcproxy.downstream.io.responses import JSON, Accepted, Refusal, read_accept
from mcproxy.http import server as http
from mcproxy.protocol.eras import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from mcproxy.protocol.headers import METHOD, NAME, PARAM_PREFIX, VERSION
from mcproxy.protocol.jsonrpc import INVALID_REQUEST
from mcproxy.telemetry.trace_context import FIELDS as TRACE_FIELDS

SESSION_HEADER: Final = "Mcp-Session-Id"

# In lower case, as `http.Headers` has them.
SESSION_FIELD: Final = SESSION_HEADER.lower()
METHOD_FIELD: Final = METHOD.lower()
NAME_FIELD: Final = NAME.lower()
VERSION_FIELD: Final = VERSION.lower()
_PARAMETERS: Final = PARAM_PREFIX.lower()
_VARYING: Final = frozenset(
    {
        SESSION_FIELD,
        METHOD_FIELD,
        NAME_FIELD,
        *TRACE_FIELDS,
        "x-forwarded-for",
        "x-request-id",
        "x-real-ip",
        "forwarded",
    }
)
"""Fields that differ between requests of one client, or of clients behind one proxy.

The last four are not read, unless settings name them.
"""


class RequestHeaders(msgspec.Struct, frozen=True):
    """The header fields that every request is judged by."""

    content_type: str
    """The media type without parameters, in lower case; empty if the field is missing."""
    is_readable: bool
    """Whether the body is JSON without a content coding."""
    accepted: Accepted
    version: str | None
    """The protocol version; joined, if the field came more than once."""
    is_stateless: bool
    """Whether the version is one of the stateless era."""
    fits_sessions: bool
    """Whether the version is one of the handshake era, or the field is missing."""


class RequestHead(msgspec.Struct, eq=False):
    """What handlers are told of a request whose sender is identified."""

    endpoint: str
    """The endpoint in its path; whether that exists is checked with each request."""
    headers: RequestHeaders
    identified: Identified
    principal: Principal
    identify_again: Callable[[http.Request], IdentifyAgain]
    """Keeps a request's credentials, by which its stream is judged again when the request is gone."""
    credentials: ForwardedCredentials | None


class HeadNote(msgspec.Struct, frozen=True, eq=False):
    """What follows from a head and the settings, and from nothing else: kept with the head (`http.Request.remember`).

    It is valid in the generation of the settings in which it was made (`TransportContext.generation`).
    """

    handler: HeadHandler
    endpoint: str
    headers: RequestHeaders
    cors: Mapping[str, str]
    """Header fields of every response."""
    credentials: bytes
    """The digest by which the sender is looked up with each request (`front.app.Identify`)."""


HeadHandler = Callable[[http.Request, RequestHead], Awaitable[http.Answered]]
"""Answers a request of an identified principal."""


def read_headers(fields: http.Headers) -> RequestHeaders:
    """The fields that all requests are judged by, read once for each head."""
    version = fields.joined(VERSION_FIELD)
    content_type = fields.get("content-type", "").partition(";")[0].strip().lower()
    encoding = fields.get("content-encoding", "identity").lower()
    return RequestHeaders(
        content_type=content_type,
        is_readable=content_type == JSON and encoding == "identity",
        accepted=read_accept(fields.joined("accept")),
        version=version,
        is_stateless=fields.get(VERSION_FIELD) in STATELESS_VERSIONS,
        fits_sessions=version is None or version in HANDSHAKE_VERSIONS,
    )


def gaps(fields: http.Headers, identifying: Collection[str]) -> frozenset[str]:
    """The fields of a request that a `HeadNote` does not depend on. `identifying` are those that identify senders."""
    names = (name for name in fields if name in _VARYING or name.startswith(_PARAMETERS))
    return frozenset(names).difference(identifying)


def forwarded_credentials(
    context: TransportContext, identified: Identified, fields: http.Headers
) -> ForwardedCredentials | None:
    """The credentials for upstreams in the headers that settings name (`credentials.forward`), and in no others (R40).

    With them goes the token that the caller was identified by, if upstreams exchange such tokens. None if there are
    none. Raises Refusal if a header came twice. Their values are never logged (R44).
    """
    found: dict[str, str] = {}
    for name in context.forwarded:
        values = fields.all(name)
        if len(values) > 1:
            raise Refusal(400, INVALID_REQUEST, f"the header {name} came twice")
        if values and values[0]:
            found[name] = values[0]
    token = _inbound_token(context, identified, fields) if context.exchanges_tokens else None
    if not found and token is None:
        return None
    named = msgspec.json.encode([identified.principal.name, sorted(found.items())])
    return ForwardedCredentials(context.sealer.digest("credentials", named), found, token)


def _inbound_token(context: TransportContext, identified: Identified, fields: http.Headers) -> InboundToken | None:
    value, token = bearer_token(fields.get("authorization")), identified.token
    if token is None or value is None:
        return None
    granted = msgspec.json.encode([identified.principal.name, token.grants])
    return InboundToken(f"authority:{context.sealer.digest('authority', granted)}", identified.until, value)
