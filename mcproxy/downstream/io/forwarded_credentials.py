"""What a request brings for upstreams that take their callers' own credentials: the headers that settings name alone.

Of anything else that a client sends nothing goes upstream (requirement R40), and of this nothing is said (R44).
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from mcproxy.call.identity import ForwardedCredentials, Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.responses import Refusal
from mcproxy.http import server as http
from mcproxy.protocol.jsonrpc import INVALID_REQUEST


class _Brought(msgspec.Struct, frozen=True):
    """What header fields bring of somebody, where `forwarded` are looked for."""

    principal: Principal
    forwarded: Collection[str]
    credentials: ForwardedCredentials | None


def forwarded_credentials(
    context: TransportContext, principal: Principal, request: http.Request
) -> ForwardedCredentials | None:
    """None where it brings nothing of that kind. Raises Refusal where a header came twice."""
    fields, forwarded = request.fields, context.forwarded
    noted = fields.noted.get(_Brought)
    if noted is None or noted.forwarded is not forwarded or noted.principal is not principal:
        credentials = _read(context, principal, fields)
        noted = fields.noted[_Brought] = _Brought(principal, forwarded, credentials)
    return noted.credentials


def _read(context: TransportContext, principal: Principal, fields: http.Headers) -> ForwardedCredentials | None:
    found: dict[str, str] = {}
    for name in context.forwarded:
        values = fields.all(name)
        if len(values) > 1:
            raise Refusal(400, INVALID_REQUEST, f"the header {name} came twice")
        if values and values[0]:
            found[name] = values[0]
    if not found:
        return None
    named = msgspec.json.encode([principal.name, sorted(found.items())])
    return ForwardedCredentials(context.sealer.digest("credentials", named), found)
