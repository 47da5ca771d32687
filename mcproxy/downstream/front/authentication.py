"""What an HTTP request shows of its sender, brought before `access.identity`; and the refusal that follows from it.

Nothing of it goes further than that: what is passed on upstream is made from scratch (R40), and no log sees it (R44).
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from mcproxy.access.identity import Fault, Identified, Identity, NotIdentified
from mcproxy.call.identity import ANONYMOUS, Principal
from mcproxy.downstream.front.oauth_metadata import challenge, is_audience
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.responses import Refusal
from mcproxy.http import server as http
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST
from mcproxy.settings import Proxy
from mcproxy.settings.loopback import is_loopback

_STATUS: Final = {
    Fault.MISSING: 401,
    Fault.MALFORMED: 400,
    Fault.INVALID: 401,
    Fault.INSUFFICIENT: 403,
}
"""RFC 6750, section 3.1."""

_RETRY_AFTER: Final = "10"
"""Seconds."""

_ALTERNATIVES: Final = {"DNS": "dns", "email": "email", "URI": "uri"}


class _Noted(msgspec.Struct, frozen=True):
    """Who sends requests to a target with certain header fields, over the connection that those are of."""

    found: Identified
    proxy: Proxy
    target: str


class Authenticator:
    """Says who sends a request (`listener.Identify`)."""

    def __init__(self, context: TransportContext, identity: Identity) -> None:
        self._context = context
        self._identity = identity

    def __call__(self, request: http.Request) -> Principal | Awaitable[Principal]:
        proxy = self._context.proxy
        if self._identity.required:
            # Only who was identified is noted. The target and the proxy say which audience a token must be for.
            noted = request.fields.noted.get(_Noted)
            known = noted is not None and noted.proxy is proxy and noted.target == request.target
            if noted is not None and known and self._identity.vouches(noted.found):
                return noted.found.principal
            return self._identified(request)
        # R42 after a reload, which may take authentication out and leaves the listener there.
        if not (is_loopback(proxy.host) or proxy.insecure):
            fault = NotIdentified(Fault.MISSING, "nobody is let in from outside without authentication")
            raise self._refusal(request, fault)
        return ANONYMOUS

    async def _identified(self, request: http.Request) -> Principal:
        proxy = self._context.proxy
        try:
            found = await self._identity.identify(_Presented(self._context, request))
        except NotIdentified as refusal:
            raise self._refusal(request, refusal) from refusal
        request.fields.noted[_Noted] = _Noted(found, proxy, request.target)
        return found.principal

    def _refusal(self, request: http.Request, refusal: NotIdentified) -> Refusal:
        if refusal.fault is Fault.UNAVAILABLE:
            return Refusal(503, INTERNAL_ERROR, refusal.sentence, headers={"Retry-After": _RETRY_AFTER})
        asked = challenge(self._context, self._identity.settings, request, refusal.fault, refusal.sentence)
        headers = {"WWW-Authenticate": asked}
        return Refusal(_STATUS[refusal.fault], INVALID_REQUEST, refusal.sentence, headers=headers)


class _Presented:
    """Implements `access.identity.Presented` for an HTTP request."""

    __slots__ = ("_context", "_request")

    def __init__(self, context: TransportContext, request: http.Request) -> None:
        self._context = context
        self._request = request

    @property
    def peer(self) -> str | None:
        return self._request.peer

    def header(self, name: str) -> Sequence[str]:
        return self._request.fields.all(name.lower())

    def certificate(self) -> Collection[tuple[str, str]]:
        return _names(self._request.fact("peercert") or {})

    def is_audience(self, audience: str) -> bool:
        return is_audience(self._context.proxy, self._request, audience)


def _names(certificate: Mapping[str, Any]) -> Collection[tuple[str, str]]:
    """The names in a certificate, as `ssl.SSLSocket.getpeercert` tells them."""
    subject = [(key, value) for rdn in certificate.get("subject", ()) for key, value in rdn]
    return [
        *(("common_name", value) for key, value in subject if key == "commonName"),
        *(
            (_ALTERNATIVES[kind], value)
            for kind, value in certificate.get("subjectAltName", ())
            if kind in _ALTERNATIVES
        ),
    ]
