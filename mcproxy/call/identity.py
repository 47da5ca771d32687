"""The sender of a call: the principal, its client's own description, and the owners of the links that serve it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.jsonrpc import Params
from mcproxy.settings import UpstreamSettings as Spec

MAX_PRINCIPAL_NAME: Final = 256
"""Characters of a principal's name, without the prefix that settings give it."""

_ANONYMOUS: Final = "anonymous"


def may_name_principal(name: str) -> bool:
    """Whether a caller may have the name that its credentials say: logs and audit records show it as it is."""
    return 0 < len(name) <= MAX_PRINCIPAL_NAME and name.isprintable()


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated identity of a caller. `name` is unique among those; unauthenticated callers are ANONYMOUS."""

    name: str
    roles: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    attributes: tuple[tuple[str, str], ...] = ()
    """Further facts by name, such as a token's claims."""
    address: str = ""
    """For callers without authentication: the address that they call from, as far as it tells them apart."""
    account: str = field(init=False, repr=False, compare=False)
    """The key by which limits for each caller count: the name or, for callers without one, their address."""
    is_several: bool = field(init=False, repr=False, compare=False)
    """Whether callers that cannot be told apart share this principal: no limit for each caller applies."""

    def __post_init__(self) -> None:
        # Computed once, as each call needs them.
        object.__setattr__(self, "account", f"{self.name} at {self.address}" if self.address else self.name)
        object.__setattr__(self, "is_several", not self.address and self.is_anonymous)

    @property
    def is_anonymous(self) -> bool:
        """Whether the caller is not authenticated, from whatever address it calls."""
        return self.name == _ANONYMOUS

    @property
    def key(self) -> str:
        """The key of the principal as an owner of links; distinct from keys of sessions and credentials."""
        return _principal_key(self.name)

    def __hash__(self) -> int:
        # Each call is looked up by its principal; few principals share an account.
        return hash(self.account)


_PRINCIPAL: Final = "principal:"


@lru_cache(1024)
def _principal_key(name: str) -> str:
    return _PRINCIPAL + name


def principal_of(owner: str) -> str | None:
    """The name of the principal that owns a link; None if the owner is no principal."""
    return owner.removeprefix(_PRINCIPAL) if owner.startswith(_PRINCIPAL) else None


ANONYMOUS = Principal(_ANONYMOUS)


AGGREGATE = ""
"""The endpoint that shows every upstream, prefixed.

Any other is the name of one upstream, which it shows unprefixed, or the key of an endpoint of the configuration
(`settings.endpoints.key_of`).
"""


@dataclass(frozen=True, slots=True)
class InboundToken:
    """The token by which a caller authenticated here, for upstreams that exchange it for one of their own (RFC 8693).

    It goes to no upstream.
    """

    authority: str
    """The key of what it grants, as an owner of links: a keyed digest, which only tokens that grant the same share."""
    expires: float
    """A Unix time in seconds."""
    value: str = field(repr=False)
    """Secret (R44)."""


@dataclass(frozen=True, slots=True)
class ForwardedCredentials:
    """Credentials in a request for upstreams that take their callers' own (`credentials.forward`)."""

    key: str
    """The key of these credentials as an owner of links: a keyed digest that reveals neither principal nor values."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Values by the names of headers in lower case. Secret (R44)."""
    inbound_token: InboundToken | None = None
    """The token by which the caller authenticated, if any upstream exchanges such tokens. It is not part of `key`."""


class Rights(msgspec.Struct, frozen=True):
    """The rights by which something was made for a caller, so that a lesser request of the same name does not get it.

    Holds no secret.
    """

    principal: Principal
    authority: str
    """As `Caller.authority`."""
    credentials: str
    """The key of its forwarded credentials; empty if it forwards none."""

    def cover(self, other: Rights) -> bool:
        """Whether these are at least the rights of `other`, of the same principal, and the same to every upstream."""
        one, two = self.principal, other.principal
        return (
            one.name == two.name
            and one.roles >= two.roles
            and one.scopes >= two.scopes
            and one.attributes == two.attributes
            and (self.authority, self.credentials) == (other.authority, other.credentials)
        )


class Caller(msgspec.Struct, frozen=True):
    """A client's own description: in each request (stateless) or in its handshake."""

    principal: Principal
    version: str
    capabilities: Params = msgspec.field(default_factory=dict)
    """ClientCapabilities as declared."""
    info: Raw | None = None
    """The client's Implementation object as declared."""
    endpoint: str = AGGREGATE
    session: str | None = None
    """The key of a handshake session, for upstreams that are connected per session; never sent to a peer."""
    log_level: str | None = None
    """The least severe level that the client wants during this call; None for no log messages."""
    credentials: ForwardedCredentials | None = None
    """The credentials for upstreams in its request, if any."""
    transport: str = ""
    """The transport: `http`, `sse` or `stdio`; empty for calls from inside the gateway's process."""

    @property
    def authority(self) -> str:
        """The key of what its token grants; that of its principal if it authenticated without a token."""
        own = self.credentials
        return self.principal.key if own is None or own.inbound_token is None else own.inbound_token.authority

    @property
    def owners(self) -> tuple[str, ...]:
        """The keys of the owners whose links it may use: its session, its principal, its credentials, its authority."""
        own = (self.principal.key,) if self.session is None else (self.session, self.principal.key)
        if self.credentials is None:
            return own
        token = self.credentials.inbound_token
        return (*own, self.credentials.key) if token is None else (*own, self.credentials.key, token.authority)

    @property
    def rights(self) -> Rights:
        """The rights of its request."""
        own = self.credentials
        return Rights(self.principal, self.authority, own.key if own is not None and own.headers else "")


LinkOwner = str | None
"""The owner of a link: the key of a session (`Caller.session`), of a `Principal`, of `ForwardedCredentials` or of an
authority (`InboundToken`).

None for a link that all callers share.
"""


def owner(spec: Spec, caller: Caller) -> LinkOwner:
    """The owner of the link to an upstream that serves `caller`."""
    if not spec.credentials.forward:
        if spec.connection == "principal":
            return caller.authority if spec.exchanges_tokens else caller.principal.key
        return caller.session if spec.connection == "session" else None
    own = caller.credentials
    return None if own is None or spec.credentials.missing(own.headers) else own.key
