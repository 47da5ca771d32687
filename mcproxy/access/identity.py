"""Authenticate a request: its headers and certificate in, the principal out.

A trusted proxy's header comes first, then an API key or a token, then a client certificate. A credential that is shown
and is not valid is refused, even if another one would do. Reads no body; no refusal quotes a credential.
"""

from __future__ import annotations

import ipaddress
import math
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final, Protocol

import msgspec

from mcproxy.access.keys import KeyRing, key_digest
from mcproxy.access.oauth.fetching import Fetch, fetch
from mcproxy.access.oauth.issuers import KeysUnavailable
from mcproxy.access.oauth.tokens import InsufficientScope, InvalidToken, Tokens, Verified
from mcproxy.access.refusals import RefusalReason, Refusals
from mcproxy.call.identity import ANONYMOUS, Principal, may_name_principal
from mcproxy.concurrency.spawn import Spawn
from mcproxy.settings.access.authentication import RESERVED, Authentication, Certificates, Forwarded

MAX_ROLES: Final = 100
"""Roles that a proxy in front may name for one caller; the others are left out."""

_IPV6_CALLER: Final = 64
"""Bits of an IPv6 address that identify one caller, which chooses the others itself (RFC 4291, section 2.5.1)."""
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(?P<token>[A-Za-z0-9._~+/-]+=*) *")
"""RFC 6750, section 2.1; schemes are case-insensitive (RFC 9110, section 11.1)."""


class Fault(Enum):
    """Why a request has no principal, as told to the client (RFC 6750, section 3.1)."""

    MISSING = "missing"
    """No credential was shown."""
    MALFORMED = "invalid_request"
    """More than one credential was shown."""
    INVALID = "invalid_token"
    INSUFFICIENT = "insufficient_scope"
    UNAVAILABLE = "unavailable"
    """The issuer's keys are not available now: the client is not at fault, and a new token would not help."""


class NotIdentified(Exception):
    """A request without a valid credential. The text quotes nothing of the credential."""

    def __init__(self, fault: Fault, sentence: str, reason: RefusalReason) -> None:
        """`fault` is for the client, `reason` for operators."""
        super().__init__(sentence)
        self.fault = fault
        self.sentence = sentence
        self.reason = reason


class Identified(msgspec.Struct, frozen=True, eq=False):
    """A principal, and how long the same credentials stay valid (see `Identity.vouches`), in Unix seconds."""

    principal: Principal
    settings: Authentication
    since: float = -math.inf
    until: float = math.inf
    token: Verified | None = None


class Presented(Protocol):
    """The credentials of a request, not verified yet."""

    @property
    def peer(self) -> str | None:
        """The client's address; None if the connection has none."""

    def header(self, name: str) -> Sequence[str]:
        """All values of a header, in the order they came."""

    def certificate(self) -> Collection[tuple[str, str]]:
        """The verified names in the client's certificate: (common_name, dns, email or uri; the name)."""

    def is_audience(self, audience: str) -> bool:
        """Whether a token for that audience is valid for the requested endpoint."""

    @property
    def resource(self) -> str:
        """The audience that a token should have: the URL of the endpoint."""


class Identity:
    """Finds the principal of a request.

    `spawn` starts tasks that fetch issuers' keys. `wall` is the Unix time in seconds. `refusals` records refused
    credentials.
    """

    def __init__(
        self,
        settings: Authentication,
        spawn: Spawn,
        fetch: Fetch | None = None,
        wall: Callable[[], float] = time.time,
        refusals: Refusals | None = None,
    ) -> None:
        self._wall = wall
        self._refusals = refusals
        self._tokens = Tokens(settings.oauth, spawn, fetch or self._fetch, wall)
        self._adopt(settings)

    async def _fetch(self, url: str, keys_max_bytes: int, *, public: bool = False) -> bytes:
        return await fetch(url, keys_max_bytes, public=public, egress=self._settings.oauth.leaving)

    @property
    def settings(self) -> Authentication:
        """The settings in force."""
        return self._settings

    @property
    def local(self) -> Principal:
        """The principal of callers over stdio."""
        return Principal(self._settings.stdio.name, frozenset(self._settings.stdio.roles))

    @property
    def header_names(self) -> frozenset[str]:
        """The header fields that identify a request, in lower case."""
        settings = self._settings
        names = ("Authorization", settings.key_header, settings.forwarded.user_header, settings.forwarded.roles_header)
        return frozenset(name.lower() for name in names if name)

    def reconfigure(self, settings: Authentication) -> None:
        """Puts other settings in force from the next request on."""
        if settings.oauth != self._settings.oauth:
            self._tokens.reconfigure(settings.oauth)
        self._adopt(settings)

    def _adopt(self, settings: Authentication) -> None:
        self._settings = settings
        self.required = settings.required
        """Whether callers must authenticate; else all are ANONYMOUS."""
        self._keys = KeyRing(settings.keys)

    def prepare(self) -> None:
        """Fetches issuers' keys before the first token comes."""
        self._tokens.prepare()

    def vouches(self, found: Identified) -> bool:
        """Whether an identified caller would be identified again now, with the same credentials."""
        return (
            found.settings is self._settings
            and found.since <= self._wall() < found.until
            and (found.token is None or found.token.is_current)
        )

    def note_refusal(self, refusal: NotIdentified, peer: str | None) -> None:
        """Counts a refusal and writes it to the audit log (requirement R88)."""
        if self._refusals is not None:
            self._refusals.count(refusal.reason, refusal.sentence, peer)

    async def identify(self, presented: Presented) -> Identified:
        """Raises NotIdentified."""
        settings = self._settings
        if not settings.required:
            return Identified(anonymous_from(presented.peer), settings)
        if (principal := _forwarded(presented, settings.forwarded)) is not None:
            return Identified(principal, settings)
        if (secret := self._secret(presented)) is not None:
            return await self._bearer(secret, presented)
        if (principal := _certified(presented, settings.certificates)) is not None:
            return Identified(principal, settings)
        raise NotIdentified(Fault.MISSING, f"authentication is required: {self._ways()}", RefusalReason.MISSING)

    def _secret(self, presented: Presented) -> str | None:
        """The only key or token of a request. Raises NotIdentified."""
        authorization = presented.header("Authorization")
        others = presented.header(self._settings.key_header) if self._settings.key_header else ()
        match [*authorization, *others]:
            case []:
                return None
            case [only]:
                bearer = _BEARER.fullmatch(only if authorization else f"Bearer {only}")
            case _:
                # RFC 6750, section 2: "Clients MUST NOT use more than one method". Readers could choose differently.
                raise NotIdentified(Fault.MALFORMED, "more than one key or token: send one", RefusalReason.SEVERAL)
        if bearer is None:
            sentence = "the header Authorization is not `Bearer` and a key or a token"
            raise NotIdentified(Fault.INVALID, sentence, RefusalReason.MALFORMED)
        return bearer["token"]

    async def _bearer(self, secret: str, presented: Presented) -> Identified:
        settings, hashed = self._settings, key_digest(secret)
        if (holder := self._keys.find(hashed)) is not None:
            if holder.expires <= self._wall():
                raise NotIdentified(Fault.INVALID, "the key has expired", RefusalReason.EXPIRED)
            return Identified(holder.principal, settings, until=holder.expires)
        if not settings.oauth.issuers:
            raise NotIdentified(Fault.INVALID, "the key is not known", RefusalReason.UNKNOWN_KEY)
        try:
            token = await self._tokens.verified(secret, hashed, presented.is_audience)
        except InvalidToken as invalid:
            sentence = str(invalid)
            if invalid.reason is RefusalReason.AUDIENCE:
                sentence += f": expected {' or '.join([presented.resource, *invalid.expected])}"
            raise NotIdentified(Fault.INVALID, sentence, invalid.reason) from invalid
        except InsufficientScope as lacking:
            raise NotIdentified(Fault.INSUFFICIENT, str(lacking), RefusalReason.SCOPE) from lacking
        except KeysUnavailable as unavailable:
            sentence = "the keys of the token's issuer are not available now; try again"
            raise NotIdentified(Fault.UNAVAILABLE, sentence, RefusalReason.ISSUER_UNAVAILABLE) from unavailable
        return Identified(token.principal, settings, token.since, token.until, token)

    def _ways(self) -> str:
        settings = self._settings
        bearer = ["a key"] * bool(settings.keys) + ["a token"] * bool(settings.oauth.issuers)
        ways = [f"`Authorization: Bearer` with {' or '.join(bearer)}"] if bearer else []
        ways += ["the word of the proxy in front"] if settings.forwarded.trusted else []
        ways += ["a certificate"] if settings.certificates.enabled else []
        return ", or ".join(ways)


def anonymous_from(peer: str | None) -> Principal:
    """The principal of callers without authentication, with the address that tells them apart (of IPv6, its /64).

    A connection from a loopback address may come from anyone: through a reverse proxy, or from any program of one user.
    """
    if peer is None:
        return ANONYMOUS
    address = ipaddress.ip_address(peer.partition("%")[0])
    if address.version == 6 and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return ANONYMOUS
    if address.version == 4:
        return replace(ANONYMOUS, address=str(address))
    return replace(ANONYMOUS, address=str(ipaddress.ip_network((address, _IPV6_CALLER), strict=False)))


def bearer_token(authorization: str | None) -> str | None:
    """The key or token in an `Authorization` header; None if it holds none."""
    bearer = _BEARER.fullmatch(authorization or "")
    return None if bearer is None else bearer["token"]


def _forwarded(presented: Presented, settings: Forwarded) -> Principal | None:
    """The principal that a trusted proxy names; None if the peer is no such proxy, or names no caller.

    Raises NotIdentified.
    """
    if not (settings.trusted and _is_trusted(presented.peer, settings)):
        return None
    match presented.header(settings.user_header):
        case []:
            return None
        case [name] if may_name_principal(name):
            roles = _listed(presented.header(settings.roles_header)) if settings.roles_header else ()
            return _principal(settings.prefix + name, {*roles, *settings.roles})
        case _:
            sentence = f"the header {settings.user_header} names no caller, or several"
            raise NotIdentified(Fault.MALFORMED, sentence, RefusalReason.NAME)


def _is_trusted(peer: str | None, settings: Forwarded) -> bool:
    if peer is None:
        return False
    address = ipaddress.ip_address(peer.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in settings.trusted)


def _listed(values: Sequence[str]) -> list[str]:
    roles = [role.strip() for value in values for role in value.split(",")]
    return [role for role in roles if role][:MAX_ROLES]


def _certified(presented: Presented, settings: Certificates) -> Principal | None:
    """The principal of a certificate, which must have exactly one name of the configured kind. Raises NotIdentified."""
    if not settings.enabled:
        return None
    match [name for kind, name in presented.certificate() if kind == settings.name]:
        case []:
            return None
        case [name] if may_name_principal(name):
            return _principal(settings.prefix + name, settings.roles)
        case _:
            sentence = f"the certificate names no caller, or several ({settings.name})"
            raise NotIdentified(Fault.INVALID, sentence, RefusalReason.NAME)


def _principal(name: str, roles: Collection[str]) -> Principal:
    if name == RESERVED:
        raise NotIdentified(Fault.INVALID, "this is a reserved name", RefusalReason.NAME)
    return Principal(name, frozenset(roles))
