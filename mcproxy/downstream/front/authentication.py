"""Identify the sender of an HTTP request by what `access.identity` accepts, and turn its refusals into HTTP responses.

`HttpRequestFacts` is all that identification needs of a request, so it serves two HTTP servers: our own, for MCP's hot
path, and aiohttp's, for pages for people (`page_authentication`). Credentials are passed to `access.identity` alone:
headers to upstreams are built from scratch (R40), and nothing logs credentials (R44).
"""

from __future__ import annotations

import hashlib
import math
import ssl
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from mcproxy.access.identity import Fault, Identified, Identity, NotIdentified
from mcproxy.access.refusals import RefusalReason
from mcproxy.call.identity import Principal
from mcproxy.downstream.front.oauth_metadata import TargetFacts, challenge, is_audience, resource_url
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.open_streams import IdentifyAgain
from mcproxy.downstream.io.responses import Refusal
from mcproxy.http import server as http
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST
from mcproxy.settings.loopback import is_loopback

MOST_KNOWN: Final = 4096
"""Credentials whose principals are remembered."""

_STATUS: Final = {
    Fault.MISSING: 401,
    Fault.MALFORMED: 400,
    Fault.INVALID: 401,
    Fault.INSUFFICIENT: 403,
}
"""RFC 6750, section 3.1."""

_RETRY_AFTER: Final = "10"
"""Seconds after which a client may try again."""

_ALTERNATIVES: Final = {"DNS": "dns", "email": "email", "URI": "uri"}


class HttpRequestFacts(TargetFacts, Protocol):
    """The facts of a request that identify its sender, whichever server read it."""

    @property
    def peer(self) -> str | None:
        """The client's IP address; None if it has none."""

    def transport_info(self, name: str) -> Any:
        """Extra information of the transport (`asyncio.BaseTransport.get_extra_info`): here `peercert`."""


class Authenticator:
    """Implements `front.app.Identify`."""

    def __init__(self, context: TransportContext, identity: Identity, wall: Callable[[], float] = time.time) -> None:
        """`wall` is a Unix time in seconds."""
        self._context = context
        self._identity = identity
        self._wall = wall
        self._known: dict[bytes, Identified] = {}
        """Who was identified in `_generation`, by credentials."""
        self._generation = context.generation

    async def __call__(self, request: http.Request) -> Identified:
        generation = self._context.generation
        found = await self._identify_again(request)
        if generation is self._context.generation:
            if generation is not self._generation or len(self._known) >= MOST_KNOWN:
                self._known, self._generation = {}, generation
            self._known[self.credentials(request)] = found
        return found

    def known(self, credentials: bytes) -> Identified | None:
        found = self._known.get(credentials)
        if found is None or self._generation is not self._context.generation or not self._identity.vouches(found):
            return None
        return found

    def credentials(self, request: http.Request) -> bytes:
        fields = request.fields
        said = (
            request.peer,
            request.certificate,
            [(name, fields.all(name)) for name in sorted(self._identity.header_names)],
            # Where the request goes: the audience that a token must have.
            (request.scheme, request.local, request.target, fields.all("host")),
        )
        return hashlib.sha256(repr(said).encode(errors="surrogateescape")).digest()

    @property
    def header_names(self) -> Collection[str]:
        return self._identity.header_names

    def again(self, request: http.Request) -> IdentifyAgain:
        return partial(self._identify_again, _KeptRequest.of(request, self._identity.header_names))

    async def _identify_again(self, request: HttpRequestFacts) -> Identified:
        try:
            return await self.identify(request)
        except NotIdentified as refusal:
            raise self._refusal(request, refusal) from refusal

    async def identify(self, request: HttpRequestFacts) -> Identified:
        """The sender's principal. Raises NotIdentified, which is reported to operators (requirement R88)."""
        try:
            return await self._identified(request)
        except NotIdentified as refusal:
            self._identity.note_refusal(refusal, request.peer)
            raise

    async def recognize(self, request: HttpRequestFacts) -> Principal | None:
        """The sender's principal, or None, for pages that are for everyone.

        Refused credentials are reported to operators; missing ones are not.
        """
        try:
            return (await self._identified(request)).principal
        except NotIdentified as refusal:
            if refusal.fault is not Fault.MISSING:
                self._identity.note_refusal(refusal, request.peer)
            return None

    async def _identified(self, request: HttpRequestFacts) -> Identified:
        proxy = self._context.proxy
        # R42, checked again: a reload may remove authentication, and leaves the listener at its address.
        if not (self._identity.required or is_loopback(proxy.host) or proxy.insecure):
            raise NotIdentified(
                Fault.MISSING,
                "callers from other machines need authentication, and none is configured",
                RefusalReason.MISSING,
            )
        # TLS checks a certificate only when the connection begins, and connections are kept.
        expires = _expiry(request.transport_info("peercert") or {})
        if expires <= self._wall():
            raise NotIdentified(
                Fault.INVALID, "the client's certificate has expired: connect with another", RefusalReason.EXPIRED
            )
        found = await self._identity.identify(_Presented(self._context, request))
        return found if found.until <= expires else replace(found, until=expires)

    def _refusal(self, request: HttpRequestFacts, refusal: NotIdentified) -> Refusal:
        if refusal.fault is Fault.UNAVAILABLE:
            return Refusal(503, INTERNAL_ERROR, refusal.sentence, headers={"Retry-After": _RETRY_AFTER})
        asked = challenge(self._context, self._identity.settings, request, refusal.fault, refusal.sentence)
        headers = {"WWW-Authenticate": asked}
        return Refusal(_STATUS[refusal.fault], INVALID_REQUEST, refusal.sentence, headers=headers)


class _KeptRequest(msgspec.Struct, frozen=True, eq=False):
    """The credentials of a request, kept for as long as its stream is open (implements `HttpRequestFacts`)."""

    fields: http.Headers
    """The fields that identify requests."""
    path: str
    raw_path: str
    scheme: str
    local: tuple[str, int] | None
    peer: str | None
    certificate: Mapping[str, Any] | None

    @classmethod
    def of(cls, request: http.Request, names: Collection[str]) -> _KeptRequest:
        lines = [(name, value) for name in ("host", *names) for value in request.fields.all(name)]
        certificate = request.certificate
        return cls(
            http.Headers.of(lines),
            request.path,
            request.raw_path,
            request.scheme,
            request.local,
            request.peer,
            certificate,
        )

    def transport_info(self, name: str) -> Any:
        return self.certificate if name == "peercert" else None


class _Presented:
    """Implements `access.identity.Presented` for an HTTP request."""

    __slots__ = ("_context", "_request")

    def __init__(self, context: TransportContext, request: HttpRequestFacts) -> None:
        self._context = context
        self._request = request

    @property
    def peer(self) -> str | None:
        return self._request.peer

    def header(self, name: str) -> Sequence[str]:
        return self._request.fields.all(name.lower())

    def certificate(self) -> Collection[tuple[str, str]]:
        return _names(self._request.transport_info("peercert") or {})

    def is_audience(self, audience: str) -> bool:
        return is_audience(self._context.proxy, self._request, audience)

    @property
    def resource(self) -> str:
        return resource_url(self._context.proxy, self._request)


def _expiry(certificate: Mapping[str, Any]) -> float:
    """A certificate's expiry, as a Unix time in seconds; infinity without a certificate."""
    return ssl.cert_time_to_seconds(certificate["notAfter"]) if "notAfter" in certificate else math.inf


def _names(certificate: Mapping[str, Any]) -> Collection[tuple[str, str]]:
    """The names in a certificate, as `ssl.SSLSocket.getpeercert` returns them."""
    subject = [(key, value) for rdn in certificate.get("subject", ()) for key, value in rdn]
    return [
        *(("common_name", value) for key, value in subject if key == "commonName"),
        *(
            (_ALTERNATIVES[kind], value)
            for kind, value in certificate.get("subjectAltName", ())
            if kind in _ALTERNATIVES
        ),
    ]
