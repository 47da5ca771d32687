"""Grants and registrations in the store that replicas share: sealed one by one; each change is told to the others.

While the store is down, grants read before serve. A refreshed grant is held until it can be stored, since its earlier
refresh token is void; a new login is refused. The replicas fill a store again that lost its data.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import anyio
import msgspec
import structlog
from cachetools import LRUCache

from mcproxy.cluster.store.protocol import Store, StoreUnavailable
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.sealing import Sealer, Unsealable
from mcproxy.upstream.oauth.grants import Grant, GrantKey
from mcproxy.upstream.oauth.registration import ClientIdentity
from mcproxy.upstream.oauth.storage.store import StoreFailed

GRANT_LIFE: Final = 400 * 86400.0
"""Seconds after its last refresh for which a grant is stored."""
WITHDRAWN_LIFE: Final = 30 * 86400.0
"""Seconds for which a revocation is stored, so that a replica that missed it does not store the grant again."""
MAX_KNOWN: Final = 10_000
"""Grants that are remembered as last read or written."""
AWAY: Final = 0.5
"""Seconds until a store that failed is asked again."""
MAX_REVOKED: Final = 100_000
"""Upstreams and principals whose revoked logins are remembered."""
MAX_IDS: Final = 8
"""Ids of revoked logins that are remembered for one upstream and principal; the age of a grant tells earlier ones."""
SKEW: Final = 60.0
"""Seconds by which the clocks of replicas may differ."""
ATTEMPTS: Final = 8
"""Attempts to store a grant that others change at the same time."""

_GRANTS: Final = "grant:"
_REGISTRATIONS: Final = "registration:"
_PURPOSE: Final = "oauth grant"
_REGISTRATION_PURPOSE: Final = "oauth registration"
_BUCKETS: Final = 4096
"""Change counters; a change of one grant may cause a few others to be read again."""

log = structlog.get_logger()


class Revocation(msgspec.Struct, frozen=True, array_like=True):
    """The logins of one key that were taken back."""

    at: float
    """The Unix time in seconds of the last revocation."""
    ids: tuple[str, ...]
    """The ids of the last of them, at most MAX_IDS."""

    def covers(self, grant: Grant) -> bool:
        """Whether a grant is of a login that was taken back, or of one before that."""
        return bool(grant.id) and (grant.id in self.ids or grant.token.obtained_at < self.at - SKEW)

    def with_earlier(self, earlier: Revocation | None) -> Revocation:
        """Both revocations of the same key."""
        if earlier is None:
            return self
        return Revocation(max(self.at, earlier.at), tuple(dict.fromkeys((*earlier.ids, *self.ids)))[-MAX_IDS:])


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """The sealed content of one entry."""

    key: GrantKey
    """The grant's key: an entry that was moved to another name is refused."""
    grant: Grant | None
    """None if the grant was revoked."""
    revocation: Revocation | None = None
    """With a revoked grant: what was revoked, and when; None if an older version revoked it."""


class _StoredRegistration(msgspec.Struct, frozen=True, array_like=True):
    issuer: str
    redirect_uri: str
    client: ClientIdentity


_decoder: Final = msgspec.json.Decoder(_Stored)
_registrations: Final = msgspec.json.Decoder(_StoredRegistration)


class _Withdrawn(NamedTuple):
    """A grant that was revoked while the store was down."""

    id: str | None
    """The login's id; None if it was unknown here."""


class SharedGrants:
    """Implements `upstream.oauth.storage.store.GrantStore`."""

    def __init__(
        self, store: Store, sealer: Sealer, max_known: int = MAX_KNOWN, wall: Callable[[], float] = time.time
    ) -> None:
        """`wall` is a Unix time in seconds."""
        self._wall = wall
        self._revoked: LRUCache[GrantKey, Revocation] = LRUCache(MAX_REVOKED)
        """What was taken back, as far as this process has heard: the store may be made to say otherwise."""
        self._store = store
        self._sealer = sealer
        self._known: LRUCache[GrantKey, Grant] = LRUCache(max_known)
        self._held: dict[GrantKey, Grant | _Withdrawn] = {}
        """Grants in use here that could not be stored yet: few."""
        self._doubted: dict[GrantKey, None] = {}
        """Grants that the store may have lost."""
        self._wanted = Wakeup()
        self._changes = [0] * _BUCKETS
        self._gaps = 0
        self.tell: Callable[[GrantKey], None] = _untold
        """Tells other replicas that a grant has changed. Never blocks."""

    async def load(self, key: GrantKey) -> Grant | None:
        if isinstance(self._held.get(key), _Withdrawn):
            return None
        try:
            sealed = await self._store.get(_name(key))
        except StoreUnavailable as error:
            if (known := self.latest(key)) is None:
                raise away() from error
            return known
        known = self.latest(key)
        if sealed is None:
            if known is not None:
                # It was stored and not revoked: the store lost its data.
                self._hold(key, known)
            return known
        try:
            stored = self._opened(sealed, key)
        except StoreFailed:
            if key not in self._held:
                raise
            return known
        if stored is not None and self._was_revoked(stored):
            log.warning(
                "a login that was taken back is in the store again: not used, and taken out",
                upstream=key.upstream,
                principal=key.principal,
            )
            self._hold(key, _Withdrawn(stored.id))
            return None
        if stored is None:
            held = self._held.get(key)
            if isinstance(held, Grant) and not held.id:
                return held
            self._note_revocation(key)
            self._known.pop(key, None)
            self._held.pop(key, None)
            return None
        if known is not None and _is_later(known, stored):
            # The replica that renewed it has not stored it yet, or ended before that.
            self._hold(key, known)
            return known
        self._settle(stored)
        return stored

    async def save(self, grant: Grant) -> None:
        try:
            await self._store.put(_name(grant.key), self._sealed(grant.key, grant), GRANT_LIFE)
        except StoreUnavailable as error:
            if grant.id:
                raise away() from error
            # The gateway got it by itself: if it is lost, it can get another.
            self._hold(grant.key, grant)
        else:
            self._held.pop(grant.key, None)
        self._known[grant.key] = grant
        self._change(grant.key)

    async def update(self, grant: Grant) -> Grant:
        try:
            counts = await self._stored(grant)
        except (StoreUnavailable, StoreFailed) as error:
            log.warning("a refreshed grant is held until it can be stored", upstream=grant.upstream, why=str(error))
            counts = grant
            held = self._held.get(grant.key)
            if not isinstance(held, _Withdrawn) and not _is_later(held, grant):
                self._hold(grant.key, grant)
            self._note(grant)
        else:
            self._settle(counts)
        self._change(grant.key)
        return counts

    async def delete(self, key: GrantKey) -> None:
        self._note_revocation(key)
        try:
            await self._store.put(_name(key), self._sealed(key, None), WITHDRAWN_LIFE)
        except StoreUnavailable:
            known = self.latest(key)
            self._hold(key, _Withdrawn(None if known is None else known.id))
        else:
            self._held.pop(key, None)
        self._known.pop(key, None)
        self._change(key)

    async def all(self) -> list[Grant]:
        try:
            entries = [await self._store.get(name) for name in await self._store.names(_GRANTS)]
        except StoreUnavailable as error:
            raise away() from error
        grants = [self._opened(sealed) for sealed in entries if sealed is not None]
        valid = (grant for grant in grants if grant is not None and not self._was_revoked(grant))
        return sorted(valid, key=lambda grant: grant.key)

    async def registration(self, issuer: str, redirect_uri: str) -> ClientIdentity | None:
        try:
            sealed = await self._store.get(_registration_name(issuer, redirect_uri))
        except StoreUnavailable as error:
            raise away() from error
        if sealed is None:
            return None
        try:
            found = _registrations.decode(self._sealer.open(_REGISTRATION_PURPOSE, sealed.decode()))
        except (Unsealable, msgspec.MsgspecError, UnicodeDecodeError):
            return None  # it can be registered again
        return found.client if (found.issuer, found.redirect_uri) == (issuer, redirect_uri) else None

    async def register(self, issuer: str, redirect_uri: str, client: ClientIdentity) -> None:
        registered = msgspec.json.encode(_StoredRegistration(issuer, redirect_uri, client))
        sealed = self._sealer.seal(_REGISTRATION_PURPOSE, registered).encode()
        try:
            await self._store.put(_registration_name(issuer, redirect_uri), sealed, GRANT_LIFE)
        except StoreUnavailable as error:
            raise away() from error

    async def renew(self) -> None:
        try:
            for prefix, purpose in ((_GRANTS, _PURPOSE), (_REGISTRATIONS, _REGISTRATION_PURPOSE)):
                for name in await self._store.names(prefix):
                    await self._seal_again(name, purpose)
        except StoreUnavailable as error:
            raise away() from error

    def version(self, key: GrantKey) -> object:
        return self._gaps, self._changes[hash(key) % _BUCKETS]

    # For the replica

    def latest(self, key: GrantKey) -> Grant | None:
        """The latest grant known here, stored or not; None if it was revoked."""
        held, known = self._held.get(key), self._known.get(key)
        if isinstance(held, _Withdrawn):
            return None
        return known if held is None or _is_later(known, held) else held

    def learn(self, grant: Grant) -> None:
        """Takes in a grant that another replica renewed or uses."""
        known = self._known.get(grant.key)
        if self._was_revoked(grant):
            return
        if known is None or _is_newer(grant, known):
            self._known[grant.key] = grant

    def is_held(self, key: GrantKey) -> bool:
        """Whether a grant could not be stored yet."""
        return key in self._held

    def keep(self, grant: Grant) -> None:
        """Takes in a grant that another replica renewed and could not store: stores it as soon as possible."""
        held = self._held.get(grant.key)
        if isinstance(held, _Withdrawn) or _is_later(self.latest(grant.key), grant):
            return
        self.learn(grant)
        self._hold(grant.key, grant)
        self.note_change(grant.key)

    def note_change(self, key: GrantKey) -> None:
        """Another process changed a grant: reads it again."""
        self._changes[hash(key) % _BUCKETS] += 1

    def note_gap(self) -> None:
        """Changes were missed, or the store lost its data: reads every grant again."""
        self._gaps += 1
        self._doubted.update(dict.fromkeys(self._known))
        self._wanted.notify_all()

    async def run(self) -> None:
        """Stores held and lost grants as soon as possible, until cancelled."""
        try:
            while True:
                while not (self._held or self._doubted):
                    await self._wanted.wait()
                await self._look_for_lost()
                await self._store_held()
        finally:
            if self._held:
                log.warning(
                    "refreshed grants could not be stored: if no other replica has them, people must log in again",
                    upstreams=sorted({key.upstream for key in self._held}),
                )

    async def _look_for_lost(self) -> None:
        while self._doubted:
            key = next(iter(self._doubted))
            try:
                is_lost = await self._store.get(_name(key)) is None
            except StoreUnavailable:
                await anyio.sleep(AWAY)
                return
            del self._doubted[key]
            if is_lost and key in self._known:
                self._hold(key, self._known[key])

    async def settle(self) -> None:
        """Stores held grants. Raises StoreFailed if that is not possible now."""
        if self._held:
            await self._store_held()
        if self._held:
            raise away()

    async def _store_held(self) -> None:
        """Stores held grants as far as possible now; waits a moment before the next attempt at the rest."""
        for key, held in list(self._held.items()):
            try:
                if isinstance(held, Grant):
                    self._settle(await self._stored(self.latest(key) or held))
                else:
                    await self._withdraw(key, held)
            except StoreUnavailable:
                break
            except StoreFailed:
                continue  # of this grant alone: what is there cannot be opened
            if self._held.get(key) is held:
                del self._held[key]
            self._change(key)
        if self._held:
            await anyio.sleep(AWAY)

    async def _stored(self, grant: Grant) -> Grant:
        """Stores a grant unless a later one is there; returns the stored one. Raises StoreUnavailable, StoreFailed."""
        for _ in range(ATTEMPTS):
            sealed = await self._store.get(_name(grant.key))
            if sealed is not None:
                present = self._opened(sealed, grant.key)
                if present is not None and self._was_revoked(present):
                    present = None
                if present is not None and (present.id != grant.id or present.generation >= grant.generation):
                    return present
                if present is None and grant.id:
                    return grant  # It was taken back, and stays so: the next look at the store says it.
            if await self._store.replace(_name(grant.key), self._sealed(grant.key, grant), GRANT_LIFE, sealed):
                return grant
        raise StoreUnavailable("other replicas keep changing the same grant")

    async def _withdraw(self, key: GrantKey, withdrawn: _Withdrawn) -> None:
        """Stores a revocation, unless another login came meanwhile."""
        sealed = await self._store.get(_name(key))
        present = None if sealed is None else self._opened(sealed, key)
        if present is not None and withdrawn.id not in {None, present.id}:
            return
        if not await self._store.replace(_name(key), self._sealed(key, None), WITHDRAWN_LIFE, sealed):
            raise StoreUnavailable("other replicas keep changing the same grant")

    def _note(self, grant: Grant) -> None:
        if not _is_later(self._known.get(grant.key), grant):
            self._known[grant.key] = grant

    def _settle(self, stored: Grant) -> None:
        """Compares held grants with the store's: an earlier token of the same grant need not be stored any more."""
        held = self._held.get(stored.key)
        if isinstance(held, Grant) and not _is_later(held, stored):
            del self._held[stored.key]
        self._note(stored)

    def _hold(self, key: GrantKey, held: Grant | _Withdrawn) -> None:
        self._held[key] = held
        self._wanted.notify_all()

    def _change(self, key: GrantKey) -> None:
        self.note_change(key)
        self.tell(key)

    def _was_revoked(self, grant: Grant) -> bool:
        revocation = self._revoked.get(grant.key)
        return revocation is not None and revocation.covers(grant)

    def _note_revocation(self, key: GrantKey) -> None:
        """Remembers that the grant of a key, if any is known, was taken back now."""
        known = self.latest(key)
        if known is not None and known.id:
            self._revoked[key] = Revocation(self._wall(), (known.id,)).with_earlier(self._revoked.get(key))

    def _sealed(self, key: GrantKey, grant: Grant | None) -> bytes:
        revocation = self._revoked.get(key) if grant is None else None
        return self._sealer.seal(_PURPOSE, msgspec.json.encode(_Stored(key, grant, revocation))).encode()

    def _opened(self, sealed: bytes, key: GrantKey | None = None) -> Grant | None:
        """The grant in an entry; None if it was revoked. Raises StoreFailed."""
        try:
            stored = _decoder.decode(self._sealer.open(_PURPOSE, sealed.decode()))
        except (Unsealable, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _foreign() from error
        if key is not None and stored.key != key:
            raise _foreign()
        if stored.revocation is not None:
            self._revoked[stored.key] = stored.revocation.with_earlier(self._revoked.get(stored.key))
        return stored.grant

    async def _seal_again(self, name: str, purpose: str) -> None:
        sealed = await self._store.get(name)
        if sealed is None or not self._sealer.is_outdated(purpose, sealed.decode(errors="replace")):
            return
        opened = self._sealer.open(purpose, sealed.decode())
        # A replica that changes it meanwhile seals it with the first secret too.
        await self._store.replace(name, self._sealer.seal(purpose, opened).encode(), GRANT_LIFE, sealed)


def _is_later(one: Grant | _Withdrawn | None, other: Grant) -> bool:
    """Whether a grant has a later token of the same login."""
    return isinstance(one, Grant) and one.id == other.id and one.generation > other.generation


def _is_newer(one: Grant, other: Grant) -> bool:
    """Whether a grant has a later token, of any login: after a logout generations restart."""
    return _is_later(one, other) or (one.id != other.id and one.token.obtained_at > other.token.obtained_at)


def _untold(key: GrantKey) -> None:
    return


def away() -> StoreFailed:
    """The sentence for a person who wants to log in while the store is down."""
    return StoreFailed(
        "the store that the replicas share (cluster.redis) does not answer: no login can be made until it does"
    )


def _foreign() -> StoreFailed:
    return StoreFailed(
        "a grant in the store that the replicas share was sealed with another secret than those of proxy.secret: list "
        "that one too, or log in again"
    )


def _name(key: GrantKey) -> str:
    return _GRANTS + opaque_name(*key)


def _registration_name(issuer: str, redirect_uri: str) -> str:
    return _REGISTRATIONS + opaque_name(issuer, redirect_uri)


def opaque_name(*parts: str) -> str:
    """A digest of names that the store may not reveal: principals, issuers."""
    # Without a key, since every replica must find it, whichever of the secrets that one began with.
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:40]
