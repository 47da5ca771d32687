"""The life of a grant: what a login or the configuration gave the gateway, the token got by it, and when it is renewed.

Sans-I/O: `GrantLife` says what may be sent and what must happen; the time comes in. A refresh changes the token's
generation and nothing else: connections and caches are keyed by the grant (requirement R64).

    WANTED --requested--> REQUESTING --granted--> SERVING --requested--> REFRESHING --granted--> SERVING
       ^                      |  |                   |                       |   |
       +----- unavailable ----+  +-- refused --> REFUSED <---- refused ------+   +- unavailable -> SERVING
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from mcproxy.upstream.oauth.challenge import BearerChallenge
from mcproxy.upstream.oauth.registration import ClientIdentity
from mcproxy.upstream.oauth.tokens import Token

OLD: Final = 0.75
"""The part of a token's life after which it is renewed, while it still serves."""
JITTER: Final = 0.1
"""The largest part of a token's life by which renewal comes earlier, so that not all are renewed at once."""


class GrantState(Enum):
    """The state of a grant's token; the table `TRANSITIONS` leads from one to another."""

    WANTED = "there is no token: a login, or a token request, is wanted"
    REQUESTING = "a first token is requested"
    SERVING = "the access token serves"
    REFRESHING = "a new token is requested; the old one serves until its end"
    REFUSED = "no token comes any more without a login or another configuration; the last one serves until its end"


class GrantEvent(Enum):
    """An event in the life of a grant."""

    REQUESTED = "a token request was begun"
    GRANTED = "a token came, or was stored by a login"
    UNAVAILABLE = "the authorization server gave no answer that decides anything"
    REFUSED = "the authorization server refused the grant"
    DISCARDED = "the grant was taken back, or its token refused with nothing to refresh it by"


TRANSITIONS: Final[Mapping[GrantState, Mapping[GrantEvent, GrantState]]] = {
    GrantState.WANTED: {
        GrantEvent.REQUESTED: GrantState.REQUESTING,
        GrantEvent.GRANTED: GrantState.SERVING,
        GrantEvent.REFUSED: GrantState.REFUSED,
        GrantEvent.DISCARDED: GrantState.WANTED,
    },
    GrantState.REQUESTING: {
        GrantEvent.GRANTED: GrantState.SERVING,
        GrantEvent.UNAVAILABLE: GrantState.WANTED,
        GrantEvent.REFUSED: GrantState.REFUSED,
        GrantEvent.DISCARDED: GrantState.WANTED,
    },
    GrantState.SERVING: {
        GrantEvent.REQUESTED: GrantState.REFRESHING,
        GrantEvent.GRANTED: GrantState.SERVING,
        GrantEvent.REFUSED: GrantState.REFUSED,
        GrantEvent.DISCARDED: GrantState.WANTED,
    },
    GrantState.REFRESHING: {
        GrantEvent.GRANTED: GrantState.SERVING,
        GrantEvent.UNAVAILABLE: GrantState.SERVING,
        GrantEvent.REFUSED: GrantState.REFUSED,
        GrantEvent.DISCARDED: GrantState.WANTED,
    },
    GrantState.REFUSED: {
        GrantEvent.GRANTED: GrantState.SERVING,
        GrantEvent.REFUSED: GrantState.REFUSED,
        GrantEvent.DISCARDED: GrantState.WANTED,
    },
}


class GrantKey(NamedTuple):
    """The key of a grant: there is one for each upstream and principal."""

    upstream: str
    principal: str = ""
    """The name of the principal that logged in; empty for the gateway's own grant, which serves all callers."""


class Grant(msgspec.Struct, frozen=True):
    """A grant as stored. Holds secrets: the token, and perhaps the client's."""

    upstream: str
    url: str
    """The server's URL when the grant was made: its token is sent nowhere else (requirement R68)."""
    resource: str
    """The server's URI for the `resource` of each token request (RFC 8707)."""
    issuer: str
    client: ClientIdentity
    scopes: tuple[str, ...]
    """All scopes requested so far: a step-up requests these too."""
    token: Token
    generation: int = 1
    """The number of the present token; counting continues with the next grant of the same key."""
    principal: str = ""
    """As in `GrantKey`."""
    id: str = ""
    """Identifies a login among those before and after it, which may be for another account; a refresh keeps it.

    Empty for a grant that the gateway got for itself.
    """

    @property
    def key(self) -> GrantKey:
        """The key under which it is stored: one grant for each upstream and principal."""
        return GrantKey(self.upstream, self.principal)

    def replaces(self, used: Grant) -> bool:
        """Whether this stored grant replaces `used`: it comes from another login, or has a later token of the same."""
        return self.id != used.id or self.generation > used.generation

    def renewed(self, token: Token) -> Grant:
        """The grant with a new token; keeps its refresh token if the answer brought no other (RFC 6749, section 6)."""
        refresh, subject = token.refresh or self.token.refresh, token.subject or self.token.subject
        return msgspec.structs.replace(
            self,
            token=msgspec.structs.replace(token, refresh=refresh, subject=subject, identity=None),
            generation=self.generation + 1,
        )


class Renewal(msgspec.Struct, frozen=True):
    """The facts needed for a grant's next token, or for its first if that needs no person."""

    key: GrantKey
    grant: Grant | None = None
    """The grant as last used; None if there was none."""
    challenge: BearerChallenge | None = None
    """The server's latest challenge."""
    scopes: tuple[str, ...] = ()
    """Scopes to request beside those that the server names, where no person is needed."""
    is_step_up: bool = False
    """Whether some of these are wanted beyond those of the grant."""


class GrantLife:
    """One grant from now on. `jitter` is a random number between 0 and 1."""

    def __init__(self, jitter: float = 0) -> None:
        self.state: GrantState = GrantState.WANTED
        self.grant: Grant | None = None
        self.reason: str | None = None
        """Why it was refused, or why the last request failed."""
        self._jitter = jitter

    def token(self, now: float) -> Token | None:
        """The token that may be sent now.

        There is no leeway before its end: a server that finds it expired answers 401, and the request is sent again
        with the next token.
        """
        if self.grant is None or self.grant.token.is_over(now):
            return None
        return self.grant.token

    def is_old(self, now: float) -> bool:
        """Whether a new token is due, and there is a way to get one."""
        if self.state is not GrantState.SERVING or self.grant is None:
            return False
        token = self.grant.token
        if token.expires_at is None:
            return False
        life = token.expires_at - token.obtained_at
        return now >= token.obtained_at + life * (OLD - JITTER * self._jitter)

    def requested(self) -> None:
        self._become(GrantEvent.REQUESTED)

    def granted(self, grant: Grant) -> None:
        self._become(GrantEvent.GRANTED)
        self.grant, self.reason = grant, None

    def unavailable(self, why: str) -> None:
        """Notes a token request without a decisive answer. Drops no token (requirement R65)."""
        self._become(GrantEvent.UNAVAILABLE)
        self.reason = why

    def not_renewed(self, why: str) -> None:
        """Notes that the authorization server refused the next token: the present one serves until its end."""
        self._become(GrantEvent.REFUSED)
        self.reason = why

    def refused(self, why: str) -> None:
        """Notes a refusal: no token is sent any more until the next login."""
        self._become(GrantEvent.REFUSED)
        self.grant, self.reason = None, why

    def discarded(self) -> None:
        self._become(GrantEvent.DISCARDED)
        self.grant = None

    def _become(self, event: GrantEvent) -> None:
        self.state = TRANSITIONS[self.state][event]
