"""Access to the status page: identified callers with the operator's role, under a host name of ours.

aiohttp's server serves the page; our own server, made for MCP's hot path, serves everything else. Requests of both are
identified alike, by `HttpRequestFacts`. Browsers send Basic authentication with the key as its password.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from mcproxy.access.identity import Fault, Identity, NotIdentified
from mcproxy.call.identity import Principal
from mcproxy.downstream.front.authentication import Authenticator
from mcproxy.downstream.front.operators import missing_role
from mcproxy.downstream.front.origin import admits_host
from mcproxy.downstream.io.context import TransportContext
from mcproxy.http import server as http
from mcproxy.settings import Settings

CHALLENGE: Final = 'Basic realm="mcproxy: the password is your key", charset="UTF-8"'

_REFUSED_FOR_GOOD: Final = frozenset({Fault.INSUFFICIENT, Fault.MALFORMED, Fault.UNAVAILABLE})
"""Faults for which another password would not help."""


class OperatorAuthentication:
    """Finds the principal of a page's request. `settings` returns those in force."""

    def __init__(self, context: TransportContext, identity: Identity, settings: Callable[[], Settings]) -> None:
        self._context = context
        self._settings = settings
        self._authenticator = Authenticator(context, identity)

    def check_host(self, request: web.Request) -> None:
        """Refuses a Host that is not ours (R42): a foreign page could read what needs no identity.

        Raises web.HTTPException.
        """
        host, local = request.headers.get("Host", ""), _PageRequest(request).local
        admin = self._settings().admin
        own = {admin.host, urlsplit(admin.public_url or "").hostname or admin.host, *(local or ())[:1]}
        if not (admits_host(host, self._context.proxy.allowed_hosts) or admits_host(host, (), own)):
            raise web.HTTPMisdirectedRequest(text=f"the Host {host!r} is not served here (proxy.allowed_hosts)\n")

    async def __call__(self, request: web.Request) -> Principal:
        """The operator who sent a page's request. Raises web.HTTPException."""
        try:
            found = await self._authenticator.identify(_PageRequest(request))
        except NotIdentified as refusal:
            if refusal.fault in _REFUSED_FOR_GOOD:
                raise web.HTTPForbidden(text=f"{refusal.sentence}\n") from refusal
            challenge = {"WWW-Authenticate": CHALLENGE}
            raise web.HTTPUnauthorized(headers=challenge, text=f"{refusal.sentence}\n") from refusal
        lack = missing_role(self._settings(), found.principal)
        if lack is not None:
            raise web.HTTPForbidden(text=f"{lack}\n")
        return found.principal

    async def is_operator(self, request: web.Request) -> bool:
        """Whether an operator sends a request to a page that is for everyone."""
        found = await self._authenticator.recognize(_PageRequest(request))
        return found is not None and missing_role(self._settings(), found) is None


class _PageRequest:
    """A request of aiohttp's server as identity sees it (implements `authentication.HttpRequestFacts`)."""

    def __init__(self, request: web.Request) -> None:
        self._transport = request.transport
        self.path = request.path
        self.raw_path = request.raw_path.partition("?")[0]
        self.scheme = request.scheme
        self.fields = _fields(request)

    @property
    def local(self) -> tuple[str, int] | None:
        return http.ip_address(self.transport_info("sockname"))

    @property
    def peer(self) -> str | None:
        return http.ip_host(self.transport_info("peername"))

    def transport_info(self, name: str) -> Any:
        return None if self._transport is None else self._transport.get_extra_info(name)


def _fields(request: web.Request) -> http.Headers:
    """The header fields, with the password of Basic authentication as a bearer token."""
    authorizations = request.headers.getall("Authorization", [])
    key = _password(authorizations[0]) if len(authorizations) == 1 else None
    return http.Headers.of(
        (name, value) if key is None or name.lower() != "authorization" else (name, f"Bearer {key}")
        for name, value in request.headers.items()
    )


def _password(authorization: str) -> str | None:
    """The password of Basic authentication (RFC 7617); None for another scheme, or if malformed."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[2] or None
    except (binascii.Error, UnicodeDecodeError):
        return None
