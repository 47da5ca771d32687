"""The grants of one upstream: a source of tokens for each principal, or one for all, and the logins that people make.

While a login is awaited, one that another process stores is taken over, as `mcproxy login` does. Opens no link: the
supervisor is told of each new login, and of each that is needed (requirement R67).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import anyio
import structlog

from mcproxy.access.audit.grant_records import RecordGrant, unrecorded
from mcproxy.call.identity import InboundToken, LinkOwner, principal_of
from mcproxy.call.upstreams import LoginStatus
from mcproxy.concurrency.spawn import Spawn
from mcproxy.settings import UpstreamSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.link import Rejected
from mcproxy.upstream.oauth.authorizer import STORE_LOOKS, Authorizer, Renew
from mcproxy.upstream.oauth.endpoints import EndpointFailed
from mcproxy.upstream.oauth.flow import DECISIVE, MAX_NARROWED, PASSING, Discovered, OAuthFlow
from mcproxy.upstream.oauth.grants import Grant, GrantKey, GrantState
from mcproxy.upstream.oauth.leniency import Note, unnoted
from mcproxy.upstream.oauth.login import INVALID_SCOPE, Login, LoginFailed
from mcproxy.upstream.oauth.metadata import InvalidMetadata
from mcproxy.upstream.oauth.storage.store import GrantStore, MemoryStore, StoreFailed
from mcproxy.upstream.oauth.tokens import TokenRefused

log = structlog.get_logger()

OnLogin = Callable[[str, str | None, str], None]
"""Called with the principal (empty for all callers), the reason why a login is needed (None once there is one), and the
reason why an attempt just failed, if one did."""


class GrantStatus(NamedTuple):
    """One grant as an operator sees it."""

    principal: str
    state: GrantState
    issuer: str | None
    expires_at: float | None
    reason: str | None
    awaits_login: bool


class StartedLogin(NamedTuple):
    """A person's login that has begun: what must be remembered until its redirect comes."""

    principal: str
    login: Login
    found: Discovered
    url: str
    """The URL for the person's browser."""
    narrowed: int = 0
    """How many times it was begun again for fewer scopes."""


class UpstreamLogins:
    """`spawn` owns its tasks. `on_login` is called at once, and never blocks. `renew` is as in `Authorizer`."""

    def __init__(
        self,
        spec: UpstreamSettings,
        store: GrantStore | None,
        spawn: Spawn,
        metrics: Metrics,
        on_login: OnLogin,
        record: RecordGrant = unrecorded,
        clock: Callable[[], float] = time.time,
        renew: Renew | None = None,
        note: Note = unnoted,
    ) -> None:
        assert spec.url is not None, "the configuration allows `oauth` with a url alone"
        assert spec.oauth is not None, "there are logins for upstreams with `oauth` alone"
        self._name = spec.name
        # Tokens from an exchange are kept only in memory, each in the store of its authorizer.
        self._store = MemoryStore() if store is None or spec.oauth.exchanges else store
        # Other replicas know nothing of grants in this process's memory.
        self._renew = renew if self._store is store else None
        self.exchanges: Final = spec.oauth.exchanges
        """Whether callers' own tokens are exchanged for the upstream's."""
        self._inbound_tokens: dict[str, InboundToken] = {}
        """For each authority that has a link, the token of it that expires last."""
        self._spawn = spawn
        self._metrics = metrics
        self._on_login = on_login
        self._clock = clock
        self.flow = OAuthFlow(
            spec.name, spec.url, spec.oauth, self._store, record, egress=spec.leaving, note=note, clock=clock
        )
        self.is_per_principal = spec.oauth.per == "principal"
        self.is_for_people = spec.oauth.grant == "authorization_code"
        """Whether people log in; else the gateway gets its tokens by itself."""
        self._authorizers: dict[str, Authorizer] = {}
        """By principal; if callers' tokens are exchanged, by owner: each authority has its own (`InboundToken`)."""
        self._awaited: dict[str, str] = {}
        """The reason why each principal must log in."""
        self._logged_in: dict[str, str] = {}
        """The id of each principal's latest grant."""
        self._is_watching = False

    def tokens(self, principal: str | None, owner: LinkOwner = None) -> Authorizer:
        """The tokens for the links of a principal; for None, those for links that all callers share.

        `owner` owns the link: only if callers' tokens are exchanged does it matter which of a principal's links it is.
        """
        if self.is_per_principal and principal is None:
            # The shared link has no login: its store never holds a grant.
            return Authorizer(
                GrantKey(self._name), self.flow, MemoryStore(), self._spawn, self._metrics, clock=self._clock
            )
        name = (principal or "") if self.is_per_principal else ""
        key = owner or name if self.exchanges else name
        if key not in self._authorizers:
            self._authorizers[key] = Authorizer(
                GrantKey(self._name, name),
                self.flow,
                MemoryStore() if self.exchanges else self._store,
                self._spawn,
                self._metrics,
                self._changed,
                lambda: None if (token := self._inbound_tokens.get(key)) is None else token.value,
                self._renew,
                clock=self._clock,
            )
        return self._authorizers[key]

    def bring(self, token: InboundToken) -> None:
        """Exchanges this token from now on, if the link of its authority needs one, unless another one lasts longer."""
        known, authorizer = self._inbound_tokens.get(token.authority), self._authorizers.get(token.authority)
        if authorizer is None or (known is not None and known.value == token.value):
            return
        if known is not None and token.expires < known.expires and authorizer.state is not GrantState.REFUSED:
            return
        self._inbound_tokens[token.authority] = token
        authorizer.until = token.expires
        authorizer.retry()

    def ends(self, owner: str) -> float:
        """The Unix time, in seconds, at which the authority that owns a link expires; infinity for other owners."""
        token = self._inbound_tokens.get(owner)
        return math.inf if token is None else token.expires

    @property
    def remembered(self) -> int:
        """The number of callers' tokens that are kept."""
        return len(self._inbound_tokens)

    def release(self, owner: str) -> None:
        """Drops an owner's tokens from memory: it has no link left."""
        self._inbound_tokens.pop(owner, None)
        key = owner if self.exchanges else principal_of(owner)
        if self.is_per_principal and key is not None and (authorizer := self._authorizers.pop(key, None)) is not None:
            self._awaited.pop(authorizer.key.principal, None)
            self._logged_in.pop(authorizer.key.principal, None)
            self._report()

    def statuses(self) -> list[GrantStatus]:
        """The grants in use, and those that are awaited."""
        return [
            GrantStatus(
                principal=it.key.principal,
                state=it.state,
                issuer=None if it.grant is None else it.grant.issuer,
                expires_at=None if it.grant is None else it.grant.token.expires_at,
                reason=it.reason or it.awaits_login,
                awaits_login=it.awaits_login is not None,
            )
            for it in self._authorizers.values()
        ]

    @property
    def status(self) -> LoginStatus:
        """The logins, for operators."""
        grants = self.statuses()
        ends = [grant.expires_at for grant in grants if grant.expires_at is not None]
        return LoginStatus(
            self.is_per_principal,
            self.is_for_people,
            state="" if self.is_per_principal else self.tokens(None).state.value,
            issuers=tuple(sorted({grant.issuer for grant in grants if grant.issuer is not None})),
            expires_at=min(ends, default=None),
            reason=next((grant.reason for grant in grants if grant.reason is not None), None),
            logged_in=sum(grant.issuer is not None for grant in grants),
            awaited=sum(grant.awaits_login for grant in grants),
        )

    def issuer(self, principal: str) -> str | None:
        """The configured authorization server; else that of the last known login."""
        authorizer = self._authorizers.get(principal)
        grant = None if authorizer is None else authorizer.grant
        return self.flow.settings.issuer or (None if grant is None else grant.issuer)

    async def discover(self, principal: str) -> Discovered:
        """Finds where a principal would log in, and what to request. Raises as `OAuthFlow` does."""
        authorizer = self._authorizers.get(principal)
        held = await self._store.load(GrantKey(self._name, principal))
        challenge = None if authorizer is None else authorizer.challenge
        earlier = (*(() if held is None else held.scopes), *(() if authorizer is None else authorizer.lacking))
        return await self.flow.discover(challenge or await self.flow.challenge(), earlier)

    async def begin(
        self, principal: str, found: Discovered, redirect_uri: str, document_url: str | None = None
    ) -> StartedLogin:
        """Begins a login. Raises as `OAuthFlow` does."""
        with self._failing(principal):
            login, url = await self.flow.begin_login(found, redirect_uri, document_url)
        return StartedLogin(principal, login, found, url)

    async def finish(self, started: StartedLogin, redirected: Mapping[str, str]) -> Grant:
        """The grant, stored and in use. Raises as `OAuthFlow` does."""
        try:
            with self._failing(started.principal):
                grant = await self.flow.finish_login(started.login, started.found.server, redirected, started.principal)
        except (LoginFailed, TokenRefused) as error:
            authorizer = self._authorizers.get(started.principal)
            if error.code == INVALID_SCOPE and authorizer is not None:
                authorizer.note_refused_scopes()
            raise
        await self.take_over(started.principal)
        return grant

    async def again(
        self, started: StartedLogin, refusal: LoginFailed | TokenRefused, document_url: str | None = None
    ) -> StartedLogin | None:
        """A login for fewer scopes after some were refused; None if the refusal has another reason.

        Raises as `OAuthFlow` does.
        """
        if refusal.code != INVALID_SCOPE or started.narrowed >= MAX_NARROWED:
            return None
        authorizer = self._authorizers.get(started.principal)
        less = self.flow.narrower(started.found, refusal, () if authorizer is None else authorizer.unobtainable)
        if less is None:
            return None
        begun = await self.begin(started.principal, less, started.login.redirect_uri, document_url)
        return begun._replace(narrowed=started.narrowed + 1)

    @contextmanager
    def _failing(self, principal: str) -> Iterator[None]:
        """Tells of a failure inside it, if the principal's calls wait for this login."""
        try:
            yield
        except (*PASSING, *DECISIVE) as error:
            if principal in self._awaited:
                self._on_login(principal, self._awaited[principal], str(error))
            raise

    async def forget(self, principal: str) -> bool:
        """Revokes a grant at its authorization server, and forgets it; returns whether there was one.

        Raises as `OAuthFlow` does; the grant is forgotten even then.
        """
        grant = await self._store.load(GrantKey(self._name, principal))
        if grant is None:
            return False
        try:
            await self.flow.revoke(grant)
        finally:
            await self.take_over(principal)
        return True

    async def forget_own(self) -> None:
        """As `forget`, of the gateway's own grant, even if its authorization server refuses the revocation."""
        try:
            await self.forget("")
        except (EndpointFailed, InvalidMetadata, StoreFailed, TokenRefused) as error:
            log.warning("a grant could not be taken back", upstream=self._name, why=str(error))

    async def take_over(self, principal: str) -> None:
        """Puts a principal's stored grant in force at once, if it is in use here."""
        authorizer = self._authorizers.get(principal)
        if authorizer is None:
            return
        try:
            await authorizer.look_at_store()
        except Rejected as error:
            log.warning("a login could not be read", upstream=self._name, why=str(error))

    def _changed(self, authorizer: Authorizer) -> None:
        principal, grant, why = authorizer.key.principal, authorizer.grant, authorizer.awaits_login
        self._report()
        if why is not None and principal not in self._awaited:
            self._awaited[principal] = why
            self._on_login(principal, why, "")
            self._watch()
        elif why is None and (self._awaited.pop(principal, None) is not None or self._is_other_login(principal, grant)):
            self._on_login(principal, None, "")
        if grant is not None:
            self._logged_in[principal] = grant.id

    def _is_other_login(self, principal: str, grant: Grant | None) -> bool:
        before = self._logged_in.get(principal)
        return grant is not None and before is not None and before != grant.id

    def _watch(self) -> None:
        """Checks for logins of other processes while one is awaited. Sends nothing upstream."""
        if not self._is_watching:
            self._is_watching = True
            self._spawn(self._look_while_awaited)

    async def _look_while_awaited(self) -> None:
        try:
            while self._awaited:
                await anyio.sleep(STORE_LOOKS)
                for principal in list(self._awaited):
                    await self.take_over(principal)
        finally:
            self._is_watching = False

    def _report(self) -> None:
        """Reports the state of the grants to operators."""
        grants = [it.grant for it in self._authorizers.values() if it.grant is not None]
        ends = [grant.token.expires_at for grant in grants if grant.token.expires_at is not None]
        self._metrics.oauth_token_expiry.labels(self._name).set(min(ends, default=0))
        awaited = sum(it.awaits_login is not None for it in self._authorizers.values())
        self._metrics.oauth_login_wanted.labels(self._name).set(awaited)


FindLogins = Callable[[str], UpstreamLogins | None]
"""Finds the logins of an upstream; None if there is none of that name with `oauth`."""
