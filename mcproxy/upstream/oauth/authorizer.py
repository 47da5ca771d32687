"""Gives the requests to one upstream their OAuth token: got once however many wait, and renewed before it ends.

Tokens are identified by their generation. No request is repeated for a grant that needs a person (requirements R64 to
R67).
"""

from __future__ import annotations

import math
import random
import shlex
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

import anyio
import structlog

from mcproxy.access.audit.grant_records import GrantAction
from mcproxy.concurrency.spawn import Spawn
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.link import LoginNeeded, Rejected
from mcproxy.upstream.oauth.challenge import BearerChallenge, bearer_challenge
from mcproxy.upstream.oauth.flow import DECISIVE, PASSING, SHOWN_SCOPES, OAuthFlow
from mcproxy.upstream.oauth.grants import Grant, GrantKey, GrantLife, GrantState, Renewal
from mcproxy.upstream.oauth.login import INVALID_SCOPE
from mcproxy.upstream.oauth.registration import MAX_SCOPES
from mcproxy.upstream.oauth.storage.store import GrantStore, StoreFailed
from mcproxy.upstream.oauth.tokens import Token, TokenRefused, TokenUnavailable

log = structlog.get_logger()

STORE_LOOKS: Final = 1.0
"""Seconds between two checks whether another process, as `mcproxy login`, has stored a grant."""
COOLDOWN: Final = 5.0
"""Seconds without another token request after one that had no decisive answer."""
REQUESTS: Final = 2
"""The most token requests that one caller waits for."""

Renew = Callable[[OAuthFlow, Renewal], Awaitable[Grant]]
"""Renews a grant by the flow of its upstream; raises as `OAuthFlow.renew` does."""


@contextmanager
def token_request_counted(metrics: Metrics, upstream: str) -> Iterator[None]:
    """Counts the token request made in the `with` block, by its outcome."""
    outcome = "unavailable"
    try:
        yield
        outcome = "granted"
    except DECISIVE:
        outcome = "refused"
        raise
    finally:
        metrics.oauth_token_requests.labels(upstream, outcome).inc()


class Authorizer:
    """Tokens of one grant. `spawn` owns the requests, which outlive their callers.

    `on_change` is called at once when a login becomes needed or is made, and when there is another grant or token.
    `inbound_token` returns the token with which its caller authenticated to the gateway. `renew` renews the grant once
    among all processes that share it; without it, this process renews it.
    """

    def __init__(
        self,
        key: GrantKey,
        flow: OAuthFlow,
        store: GrantStore,
        spawn: Spawn,
        metrics: Metrics,
        on_change: Callable[[Authorizer], None] = lambda it: None,
        inbound_token: Callable[[], str | None] = lambda: None,
        renew: Renew | None = None,
        *,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._key = key
        self._name = key.upstream
        self._flow = flow
        self._store = store
        self._spawn = spawn
        self._metrics = metrics
        self._on_change = on_change
        self._inbound_token = inbound_token
        self._renew = renew or self._renew_alone
        self._clock = clock
        self._life = GrantLife(chance())
        self._challenge: BearerChallenge | None = None
        """The server's latest challenge; None before its first 401."""
        self._seen: object = None
        """The version of the store that was read last."""
        self._looked = -STORE_LOOKS
        self._has_looked = False
        self._done: anyio.Event | None = None
        """Set when the current token request is over."""
        self._cools_until = 0.0
        self._failures = 0
        """Token requests in a row that decided nothing."""
        self._lacking: frozenset[str] = frozenset()
        """Scopes that the grant lacks according to the server; the next login requests them too."""
        self._unobtainable: frozenset[str] = frozenset()
        """Scopes that the authorization server refused."""
        self._widened: str | None = None
        """The id of the login that the server wanted more scopes for without naming any; None before."""
        self.on_trial = False
        """Whether the token replaces one that the server refused, and has not been accepted yet."""
        self.awaits_login: str | None = None
        """The reason why a person must log in; None if no login is needed."""
        self.until = math.inf
        """The Unix time, in seconds, from which on it gives no token: the token that is exchanged has expired."""
        self._over: Grant | None = None
        """The last grant that was refused, or that expired without a refresh token."""

    @property
    def key(self) -> GrantKey:
        """The upstream and principal of the grant."""
        return self._key

    @property
    def challenge(self) -> BearerChallenge | None:
        """The server's latest challenge."""
        return self._challenge

    @property
    def lacking(self) -> tuple[str, ...]:
        """Scopes that the next login requests beside those of the grant."""
        return tuple(sorted(self._lacking))

    @property
    def unobtainable(self) -> frozenset[str]:
        """Scopes beyond those of the grant that the authorization server refused."""
        return self._unobtainable

    @property
    def state(self) -> GrantState:
        return self._life.state

    @property
    def grant(self) -> Grant | None:
        """The grant in force; None before the first login, and after a refusal."""
        return self._life.grant

    @property
    def reason(self) -> str | None:
        """Why there is no token, or why the last request brought none."""
        return self._life.reason

    @property
    def generation(self) -> int:
        """The number of the grant's present token; 0 where there is none."""
        return 0 if self._life.grant is None else self._life.grant.generation

    def present(self) -> Token | None:
        """The token to send, if there is one and nothing has to happen first; else None, and `credential` waits."""
        now = self._clock()
        if now - self._looked >= STORE_LOOKS or now >= self.until:
            return None
        token = self._life.token(now)
        return None if token is None or self._life.is_old(now) else token

    async def credential(self) -> Token | None:
        """The token to send; None if the server has not demanded one yet.

        Raises LoginNeeded, and Rejected if no token is available now.
        """
        self._check_authority()
        await self._look_at_store()
        now = self._clock()
        token = self._life.token(now)
        if token is not None:
            if self._life.is_old(now) and now >= self._cools_until and self._can_request(self._life.grant):
                self._request()
            return token
        if self._life.state is GrantState.REFUSED:
            self._refuse(self._why_refused)
            raise self._needed(self._why_refused)
        if self._life.grant is not None and not self._can_request(self._life.grant):
            self._discard()
        if self._life.grant is None and self._challenge is None:
            return None
        return await self._requested()

    async def challenged(self, status: int, header: str | None, generation: int) -> bool:
        """Whether a request answered with 401 or 403 should be sent again with the present token.

        `generation` is that of the token that it was sent with, 0 for none. Raises LoginNeeded, and Rejected.
        """
        self._check_authority()
        challenge = bearer_challenge(header)
        if status == 403 and (challenge is None or not challenge.wants_more_scopes):
            return False
        if generation != self.generation:
            return True
        if status == 403 and challenge is not None:
            await self._step_up(challenge)
            return True
        self._challenge = challenge or self._challenge or BearerChallenge()
        if self.on_trial:
            # Its predecessor was refused too: the authorization server's tokens are not what the server wants.
            self._refuse("the server refuses the tokens that its authorization server gives")
            raise self._needed("the server refuses the tokens that its authorization server gives")
        if self._life.grant is not None and not self._can_request(self._life.grant):
            self._discard()
        try:
            await self._requested()
        except Rejected:
            if self._life.state is GrantState.REFUSED:
                self._refuse(self._why_refused)  # neither the server nor the authorization server takes it
            raise
        self.on_trial = generation > 0
        return True

    def accepted(self) -> None:
        """Notes that the server accepted the token on trial."""
        self.on_trial = False

    def retry(self) -> None:
        """Allows requests that were refused before: the caller brought another token."""
        if self._life.state is GrantState.REFUSED:
            self._life.discarded()
        self._cools_until = 0.0

    def note_refused_scopes(self) -> None:
        """Notes that the authorization server refuses the further scopes: they are not asked for again."""
        self._unobtainable |= self._lacking
        self._lacking = frozenset()
        if self._challenge is not None:
            scopes = tuple(scope for scope in self._challenge.scopes if scope not in self._unobtainable)
            self._challenge = self._challenge._replace(scopes=scopes)

    def _check_authority(self) -> None:
        """Raises Rejected once the token that is exchanged has expired."""
        if self._clock() >= self.until:
            raise Rejected("the token with which the caller authenticated has expired")

    def _refuse(self, why: str) -> None:
        self._over = self._life.grant or self._over
        self._life.refused(why)

    def _discard(self) -> None:
        self._over = self._life.grant or self._over
        self._life.discarded()

    async def _step_up(self, challenge: BearerChallenge) -> None:
        """Requests more scopes: by a person's login, or by a token request.

        Raises LoginNeeded, and Rejected if a request for more scopes would not help.
        """
        missing = self._missing(challenge)
        self._lacking |= missing
        if self._challenge is None or not missing:
            # Without scopes in it, all that the server supports are requested.
            self._challenge = challenge
        if self._is_for_a_person:
            options = "".join(f" --scope {shlex.quote(scope)}" for scope in sorted(missing)[:SHOWN_SCOPES])
            raise self._needed(f"the server wants further scopes for this: {_listed(missing) or 'more'}", options)
        await self._requested()

    def _missing(self, challenge: BearerChallenge) -> frozenset[str]:
        """The scopes to request beside those of the grant; empty if the server names none. Raises Rejected."""
        grant, wanted = self._life.grant, frozenset(challenge.scopes)
        if not wanted:
            return self._unnamed(grant)
        granted = frozenset() if grant is None else frozenset(grant.token.scopes or grant.scopes)
        requested = granted if grant is None else granted.union(grant.scopes)
        missing = wanted - requested - self._unobtainable
        if not missing:
            raise Rejected(_futile(wanted, granted, self._unobtainable), 403)
        allowed = frozenset(filter(self._flow.may_ask_for, missing))
        if not allowed:
            raise Rejected(
                f"the server wants the scopes {_listed(missing)}, which oauth.scopes_allowed does not permit", 403
            )
        if len(requested | self._lacking | self._unobtainable | allowed) > MAX_SCOPES:
            raise Rejected(f"the server has named more than {MAX_SCOPES} scopes by now: no more are requested", 403)
        return allowed

    def _unnamed(self, grant: Grant | None) -> frozenset[str]:
        """As `_missing`, for a challenge without scopes: it is worth one login, for all that the server supports."""
        login = "" if grant is None else grant.id
        if not self._is_for_a_person or self._widened not in {None, login}:
            raise Rejected("the server wants further scopes for this, and does not say which: none are requested", 403)
        self._widened = login
        return frozenset()

    @property
    def _is_for_a_person(self) -> bool:
        return self._flow.settings.grant == "authorization_code"

    def _can_request(self, grant: Grant | None) -> bool:
        """Whether the gateway can get a token without a person logging in."""
        return not self._is_for_a_person or (grant is not None and grant.token.refresh is not None)

    async def _requested(self) -> Token:
        """The token from the current request or a new one. Raises LoginNeeded, and Rejected."""
        if not self._can_request(self._life.grant):
            raise self._needed("there is no valid login")
        for _ in range(REQUESTS):
            before = self.generation
            if self._life.state is GrantState.REFUSED or (self._done is None and self._clock() < self._cools_until):
                break
            await self._request().wait()
            if self._life.state is not GrantState.SERVING or self.generation == before:
                break
            token = self._life.token(self._clock())
            if token is not None:
                return token
            # Another process had redeemed the refresh token, and the resulting token has expired too.
        if self._life.state is GrantState.REFUSED:
            raise self._needed(self._why_refused)
        raise Rejected(self._life.reason or "no token is available")

    @property
    def _why_refused(self) -> str:
        return self._life.reason or "the grant was refused"

    def _request(self) -> anyio.Event:
        """Begins a token request unless one runs; returns an event that is set when it is over."""
        if self._done is None:
            self._done = anyio.Event()
            self._life.requested()
            self._spawn(self._run_request)
        return self._done

    async def _run_request(self) -> None:
        try:
            with anyio.CancelScope(shield=True):
                # A redeemed grant is stored even if all waiters leave (R65); each step has a timeout.
                await self._settle_request()
        finally:
            done, self._done = self._done, None
            if done is not None:
                done.set()

    async def _settle_request(self) -> None:
        grant = self._life.grant
        try:
            earlier = (*(() if grant is None else grant.scopes), *sorted(self._lacking))
            wanted = Renewal(self._key, grant or self._over, self._challenge, earlier, bool(self._lacking))
            renewed = await self._renew(self._flow, wanted)
        except PASSING as error:
            self._life.unavailable(str(error))
            self._cool(error.retry_after if isinstance(error, TokenUnavailable) else None)
            log.warning("no token for an upstream", upstream=self._name, why=str(error))
        except DECISIVE as error:
            if isinstance(error, TokenRefused) and error.code == INVALID_SCOPE and self._lacking:
                # The grant is not what was refused: the next request asks for what it had.
                self.note_refused_scopes()
                self._life.unavailable(str(error))
            else:
                await self._refused(str(error), grant)
        except Exception as bug:
            # Neither a server's answer nor a bug of ours may take other upstreams down (R1).
            log.exception("a token request failed unexpectedly", upstream=self._name)
            self._life.unavailable(f"an internal error: {type(bug).__name__}")
            self._cool(None)
        else:
            self._failures = 0
            self._adopt(renewed)
            self._on_change(self)

    def _cool(self, retry_after: float | None) -> None:
        """Delays the next token request after one that decided nothing: as long as the answer says.

        Without a word of it, the next may come at once after the first failure, and later after each further one.
        """
        self._failures += 1
        own = COOLDOWN if self._failures > 1 else 0.0
        self._cools_until = self._clock() + (own if retry_after is None else retry_after)

    async def _renew_alone(self, flow: OAuthFlow, renewal: Renewal) -> Grant:
        with token_request_counted(self._metrics, self._name):
            return await flow.renew(renewal, self._inbound_token(), self._store)

    def _adopt(self, grant: Grant) -> bool:
        """Puts another grant in force; returns whether it comes from another login."""
        is_login = self._life.grant is None or grant.id != self._life.grant.id
        self._life.granted(grant)
        if is_login and grant.id:
            self._lacking, self.awaits_login, self.on_trial = frozenset(), None, False
        return is_login

    async def _refused(self, why: str, used: Grant | None) -> None:
        """Handles a refused renewal. If another process redeemed the same refresh token first, its grant counts.

        Otherwise the present token serves until its end, unless the grant was taken back.
        """
        try:
            stored = await self._store.load(self._key)
        except StoreFailed:
            stored = used
        if stored is not None and used is not None and stored.replaces(used):
            self._adopt(stored)
            return
        self._over = used or self._over
        if used is None or stored is None:
            self._life.refused(why)
        else:
            self._life.not_renewed(why)
        self._on_change(self)
        log.warning("an upstream's grant was refused", upstream=self._name, why=why)

    async def look_at_store(self) -> None:
        """Takes over a stored login now. Raises Rejected if the store cannot be read."""
        self._looked = -STORE_LOOKS
        await self._look_at_store()

    async def _look_at_store(self) -> None:
        """Takes over a grant that another process stored, as `mcproxy login` does."""
        now = self._clock()
        if now - self._looked < STORE_LOOKS or self._done is not None:
            return
        self._looked = now
        is_first, self._has_looked = not self._has_looked, True
        version = self._store.version(self._key)
        if version == self._seen:
            return
        try:
            stored = await self._store.load(self._key)
        except StoreFailed as error:
            if self._life.token(now) is not None:
                return  # serves until it expires or the store can be read
            raise Rejected(str(error)) from error
        self._seen = version
        if self._done is not None:
            return  # a request was begun meanwhile: its result is newer
        if stored is None:
            if self._life.grant is not None:
                if not self._flow.has_revoked(self._life.grant):
                    self._flow.note(GrantAction.FORGOTTEN, self._key.principal, self._life.grant.issuer)
                self._life.discarded()
                self._on_change(self)
        elif self._flow.is_for_this(stored) and self._is_news(stored):
            is_login = self._adopt(stored)
            if is_login and not is_first and not self._flow.has_made(stored):
                self._flow.note(GrantAction.TAKEN_OVER, self._key.principal, stored.issuer, stored.token.subject)
            self._on_change(self)

    def _is_news(self, stored: Grant) -> bool:
        """Whether a stored grant is new here: neither the one in use nor one that was refused before."""
        grant, over = self._life.grant, self._over
        is_over = over is not None and stored.id == over.id and stored.generation <= over.generation
        is_older = grant is not None and stored.id == grant.id and stored.generation < grant.generation
        return stored != grant and not is_over and not is_older

    def _needed(self, why: str, options: str = "") -> Rejected:
        if not self._is_for_a_person:
            return Rejected(f"{why}; see `oauth` of this upstream")
        if self.awaits_login != why:
            self.awaits_login = why
            self._on_change(self)
        if self._key.principal:
            return LoginNeeded(why, why)
        if self._flow.settings.per == "principal":
            return LoginNeeded(f"{why}: each caller logs in by itself, with the link that its client shows", why)
        return LoginNeeded(f"{why}: run `mcproxy login {shlex.quote(self._name)}{options}`", why)


def _futile(wanted: frozenset[str], granted: frozenset[str], unobtainable: frozenset[str]) -> str:
    """Why no scopes are requested though the server wants some, all of which were requested before."""
    if refused := wanted & unobtainable:
        return f"the server wants the scopes {_listed(refused)} for this, which its authorization server refuses"
    if withheld := wanted - granted:
        return (
            f"the server wants the scopes {_listed(withheld)} for this, which its authorization server was asked for "
            "and did not grant: a further login would not help, unless it is that of another account"
        )
    return (
        f"the server wants the scopes {_listed(wanted)} for this, which the gateway has: a further login would not "
        "help; ask whoever runs the server what else is missing"
    )


def _listed(scopes: Collection[str]) -> str:
    """Scopes as part of a sentence."""
    names = sorted(scopes)
    more = len(names) - SHOWN_SCOPES
    return " ".join(names[:SHOWN_SCOPES]) + (f" and {more} more" if more > 0 else "")
