"""Who may look at the status page: whoever may call and has the operator's role; on loopback, where nobody is asked
who they are, everybody.

A browser cannot send a bearer token by itself: it asks for a name and a password, and the password is the key.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from aiohttp import web

from mcproxy.access.identity import Identity
from mcproxy.call.identity import Principal
from mcproxy.downstream.front.authentication import Authenticator
from mcproxy.downstream.front.origin import admits_host
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.responses import Refusal
from mcproxy.http import server as http
from mcproxy.settings import Settings

ASK: Final = 'Basic realm="mcproxy: the password is your key", charset="UTF-8"'


class Operators:
    """Says who looks. `settings` are those in force, whenever it is called."""

    def __init__(self, context: TransportContext, identity: Identity, settings: Callable[[], Settings]) -> None:
        self._context = context
        self._identity = identity
        self._settings = settings
        self._credentials = Authenticator(context, identity)

    async def __call__(self, request: web.Request) -> Principal:
        """Raises web.HTTPException."""
        host = request.headers.get("Host", "")
        if not admits_host(host, self._context.proxy.allowed_hosts, {self._settings().admin.host}):
            raise web.HTTPMisdirectedRequest(text=f"the Host {host!r} is not served here (proxy.allowed_hosts)\n")
        try:
            principal = self._credentials(_shown(request))
            if not isinstance(principal, Principal):
                principal = await principal
        except Refusal as refusal:
            if refusal.status != web.HTTPUnauthorized.status_code:
                raise web.HTTPForbidden(text=f"{refusal}\n") from refusal
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": ASK}, text=f"{refusal}\n") from refusal
        self._check_role(principal)
        return principal

    def _check_role(self, principal: Principal) -> None:
        settings = self._settings()
        role = settings.admin.role
        granted = settings.access.policy.principals.get(principal.name, ())
        if self._identity.settings.required and role not in principal.roles and role not in granted:
            raise web.HTTPForbidden(text=f"{principal.name} lacks the role {role!r} (admin.role)\n")


def _shown(request: web.Request) -> http.Request:
    """The request as the clients' listener knows one, with the password that a browser sends as the key that it is."""
    authorizations = request.headers.getall("Authorization", [])
    key = _password(authorizations[0]) if len(authorizations) == 1 else None
    fields = http.Headers.of(
        (name, value) if key is None or name.lower() != "authorization" else (name, f"Bearer {key}")
        for name, value in request.headers.items()
    )
    return http.Request(_Elsewhere(request.transport), request.method, request.raw_path, fields)


class _Elsewhere:
    """The line of a request that another server answers (`http.messages.Line`): good for its facts alone."""

    def __init__(self, transport: asyncio.BaseTransport | None) -> None:
        self._transport = transport

    most = 0

    @property
    def gone(self) -> bool:
        return self._transport is None

    def fact(self, name: str) -> Any:
        return None if self._transport is None else self._transport.get_extra_info(name)

    def begin(self, request: http.Request, status: int, fields: Mapping[str, str]) -> NoReturn:
        raise NotImplementedError

    def invite(self) -> None:
        raise NotImplementedError

    def hold_back(self, full: bool) -> None:
        raise NotImplementedError

    def remember(self, request: http.Request) -> None:
        raise NotImplementedError


def _password(authorization: str) -> str | None:
    """Of Basic authentication (RFC 7617); None where it is none."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[2] or None
    except (binascii.Error, UnicodeDecodeError):
        return None
