"""What an HTTP request shows of its sender, brought before `access.identity`; and the refusal that follows from it.

Nothing of it goes further than that: what is passed on upstream is made from scratch (R40), and no log sees it (R44).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from aiohttp import web

from mcproxy.access.identity import Fault, Identity, NotIdentified, Presented
from mcproxy.call import Principal
from mcproxy.downstream.admission import is_loopback
from mcproxy.downstream.edge import Edge
from mcproxy.downstream.metadata import challenge, is_audience
from mcproxy.downstream.responses import Refusal
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST

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


class Credentials:
    """Says who sends a request (`listener.Identify`)."""

    def __init__(self, edge: Edge, identity: Identity) -> None:
        self._edge = edge
        self._identity = identity

    async def __call__(self, request: web.Request) -> Principal:
        try:
            self._check_door()
            return await self._identity.identify(_presented(self._edge, request))
        except NotIdentified as refusal:
            raise self._refusal(request, refusal) from refusal

    def _check_door(self) -> None:
        """R42 after a reload, which may take authentication out and leaves the listener there. Raises NotIdentified."""
        proxy = self._edge.proxy
        if not (self._identity.settings.required or proxy.insecure or is_loopback(proxy.host)):
            raise NotIdentified(Fault.MISSING, "nobody is let in from outside without authentication")

    def _refusal(self, request: web.Request, refusal: NotIdentified) -> Refusal:
        if refusal.fault is Fault.UNAVAILABLE:
            return Refusal(503, INTERNAL_ERROR, refusal.sentence, headers={"Retry-After": _RETRY_AFTER})
        asked = challenge(self._edge, self._identity.settings, request, refusal.fault, refusal.sentence)
        headers = {"WWW-Authenticate": asked}
        return Refusal(_STATUS[refusal.fault], INVALID_REQUEST, refusal.sentence, headers=headers)


def _presented(edge: Edge, request: web.Request) -> Presented:
    peer = _extra(request, "peername")
    return Presented(
        header=partial(_values, request),
        peer=peer[0] if isinstance(peer, tuple) else None,
        certificate=lambda: _names(_extra(request, "peercert") or {}),
        is_audience=partial(is_audience, edge.proxy, request),
    )


def _values(request: web.Request, header: str) -> Sequence[str]:
    return request.headers.getall(header, ())


def _extra(request: web.Request, what: str) -> Any:
    return None if request.transport is None else request.transport.get_extra_info(what)


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
