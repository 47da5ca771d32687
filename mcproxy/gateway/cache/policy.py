"""The rules of the read cache for one upstream: which result a caller gets, what is kept, and what invalidates it.

Decides alone: sends nothing, waits for nothing, and takes the time as an argument. A shared read is found under its key
until an invalidation removes it: callers that joined before still get its result, which is not kept, and none that came
after the change joins it (requirement R35).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec
from cachetools import LRUCache
from msgspec import Raw
from msgspec.structs import replace

from mcproxy import settings
from mcproxy.call.calls import Call, Complete, Failed, Outcome, ResultFindings
from mcproxy.call.errors import Reason
from mcproxy.call.identity import LinkOwner, owner
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.uris import MAX_URI, canonical, has_many_parts, wholes
from mcproxy.gateway.cache.singleflight import ReadWaiter, SharedRead
from mcproxy.gateway.cache.store import CachedResult, CacheKey, CacheStore, ReaderKeys
from mcproxy.gateway.cache.watches import Watch, WatchChanges, Watches
from mcproxy.protocol.caching import UNSAID, Hints, read_hints
from mcproxy.protocol.capabilities import reports_updates
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    InvalidMessage,
    Params,
    object_or_empty,
    parse_object,
    parse_text,
    raw,
    size_of,
)
from mcproxy.protocol.methods import Method

META_STALE: Final = "mcproxy/stale"
"""The key in `_meta` that marks a stale result: `{"forMs": ...}` says for how many milliseconds it has been stale."""

_MAX_PUBLIC: Final = 256 * 1024
"""Characters of all URIs that are remembered as having had a public result last."""
_HARMLESS_META: Final = frozenset({"traceparent", "tracestate", "baggage"})
"""Keys of a request's `_meta` that do not affect its result (basic, "OpenTelemetry trace context")."""
_FOREVER: Final = float("inf")
_NO_CHANGES: Final = WatchChanges()


class Hit(msgspec.Struct, frozen=True):
    """A cached result."""

    result: Complete
    stale: bool = False


class Kept(msgspec.Struct, frozen=True):
    """The effects of a finished read: whether its result was cached, entries evicted, and watches that change."""

    placed: bool = False
    evicted: int = 0
    watches: WatchChanges = _NO_CHANGES


class CachePolicy:
    """The cache of one upstream: its entries, shared reads and watches, and the rules for them."""

    def __init__(self, spec: settings.UpstreamSettings, max_entry_bytes: int) -> None:
        self.store = CacheStore(spec.cache.max_bytes)
        self._watches = Watches(spec.name, spec.cache.max_watched)
        self._spec = spec
        self._max_entry_bytes = max_entry_bytes
        self._shared_reads: dict[CacheKey, SharedRead] = {}
        self._up: dict[LinkOwner, bool] = {}
        """Whether each known link is up, by the link's owner."""
        self._reports_updates = False
        self._deaf = False
        """True while the shared link is up and its push channel is lost."""
        self._ended = False
        self._public: LRUCache[CacheKey, int] = LRUCache(_MAX_PUBLIC, getsizeof=int)

    def succeed(self, before: CachePolicy) -> None:
        """Copies the state of the links, and no cached results, from the policy `before` with other settings."""
        self._up = dict(before._up)
        self._reports_updates = before._reports_updates
        self._deaf = before._deaf

    def end(self) -> WatchChanges:
        """Drops all entries and watches and keeps no more: another policy replaces this one."""
        self._ended = True
        self.changed()
        return WatchChanges(ended=self._watches.clear())

    def keys(self, call: Call, row: Method) -> ReaderKeys | None:
        """The cache keys of `call`; None where its result may depend on more than the keys hold."""
        uri = _only_subject(call.params, row)
        if uri is None or len(uri) > MAX_URI or has_many_parts(uri):
            return None
        link_owner = owner(self._spec, call.caller)
        public = CacheKey(link_owner, uri, None)
        own = public if self._spec.cache.shared else CacheKey(link_owner, uri, call.caller.principal.name)
        return ReaderKeys(own, public)

    def find(self, keys: ReaderKeys, now: float) -> Hit | None:
        """The cached result: a fresh one, or a stale one while the link is known to be down."""
        entry = self._entry(keys, now)
        if entry is None:
            return None
        self._watches.touch(keys.public.uri)
        down = self._up.get(keys.public.owner) is False
        return _hit(entry, now) if down or now < entry.fresh_until else None

    def find_in_need(self, keys: ReaderKeys, now: float) -> Hit | None:
        """A cached result, stale or fresh, for a read that its upstream did not answer."""
        entry = self._entry(keys, now)
        return None if entry is None else _hit(entry, now)

    def shared_read_keys(self, keys: ReaderKeys) -> Sequence[CacheKey]:
        """The keys to share a read under, in order.

        The public key comes first where the last result was public; then the caller's own.
        """
        if keys.own is not keys.public and keys.public in self._public:
            return keys.public, keys.own
        return (keys.own,)

    def join(self, key: CacheKey, waiter: ReadWaiter) -> SharedRead:
        """The shared read under `key`, joined; else a new one, whose leader the caller is and has yet to begin it."""
        shared_read = self._shared_reads.get(key)
        if shared_read is not None and shared_read.open:
            shared_read.join(waiter)
            return shared_read
        watch = self._watches.confirmed(key.uri) if key.owner is None else None
        shared_read = self._shared_reads[key] = SharedRead(key, waiter, watch)
        return shared_read

    def finish(self, shared_read: SharedRead, outcome: Outcome, now: float) -> Kept:
        """Takes the outcome of a shared read: hands it to all who joined, and caches it where that is allowed."""
        fitting = self._fitting(outcome)
        hints = read_hints(fitting.result) if fitting is not None else UNSAID
        shared_read.finish(outcome, public=hints.public)
        if not self._remove(shared_read) or self._ended or shared_read.asked or unreachable(outcome):
            return Kept()
        self._drop(shared_read.leader.keys)
        return self._keep(shared_read, fitting, hints, now) if fitting is not None else Kept()

    def abandon(self, shared_read: SharedRead) -> None:
        """Ends a shared read, with an outcome or without one."""
        self._remove(shared_read)
        shared_read.release()

    def confirm(self, watch: Watch) -> bool:
        """Notes that the upstream reports changes to `watch`. Returns False if the watch was replaced meanwhile."""
        watch.confirmed = self._watches.holds(watch)
        return watch.confirmed

    def updated(self, uri: str) -> None:
        """Invalidates the resource `uri`, in any spelling, and those that it may be a part of.

        2025-11-25, schema, ResourceUpdatedNotification.
        """
        if len(uri) > MAX_URI:
            # It is not here itself; it may be a part of anything.
            self.changed()
            return
        changed = frozenset(wholes(canonical(uri)))
        for each in changed:
            self.store.drop_uri(each)
        self._detach(
            shared_read for shared_read in self._shared_reads.values() if canonical(shared_read.key.uri) in changed
        )

    def changed(self) -> None:
        """Invalidates everything."""
        self.store.clear()
        self._detach(self._shared_reads.values())

    def connected(self, owner: LinkOwner, identity: ServerIdentity, now: float) -> WatchChanges:
        """A link came up. If it was up before, it was lost unnoticed, and reports of changes with it."""
        ended = self.lost(owner, now) if self._up.get(owner) else WatchChanges()
        self._up[owner] = True
        self.heard(owner)
        self._reports_updates = reports_updates(identity.capabilities)
        return ended

    def lost(self, owner: LinkOwner, now: float) -> WatchChanges:
        """A link went down: what was read over it is stale, reads in flight are shared with no further call.

        With the shared link (`owner` None) all watches end.
        """
        self._up[owner] = False
        self.store.age(owner, now, self._spec.cache.stale_if_error)
        self._detach(shared_read for shared_read in self._shared_reads.values() if shared_read.key.owner == owner)
        return WatchChanges(ended=self._watches.clear()) if owner is None else WatchChanges()

    def deafened(self, owner: LinkOwner) -> WatchChanges:
        """The push channel was lost: until it is restored, no watch keeps an entry fresh."""
        if owner is not None:
            return WatchChanges()
        self._deaf = True
        ended = self._watches.clear()
        for watch in ended:
            self.updated(watch.uri)
        return WatchChanges(ended=ended)

    def heard(self, owner: LinkOwner) -> None:
        """The push channel is restored: from now on watches keep entries fresh."""
        if owner is None:
            self._deaf = False

    def retired(self, owner: LinkOwner, now: float) -> WatchChanges:
        """A link ended for good: drops all that was read over it."""
        ended = self.lost(owner, now)
        self.store.age(owner, now, 0)
        del self._up[owner]
        return ended

    def _entry(self, keys: ReaderKeys, now: float) -> CachedResult | None:
        """The freshest entry that a reader may have: its own, or the public one."""
        own = self._alive(keys.own, now)
        public = own if keys.own is keys.public else self._alive(keys.public, now)
        if own is None or (public is not None and public.fresh_until >= own.fresh_until):
            return public
        return own

    def _alive(self, key: CacheKey, now: float) -> CachedResult | None:
        entry = self.store.get(key)
        if entry is not None and now >= entry.stale_until:
            self.store.drop(key)
            return None
        return entry

    def _fitting(self, outcome: Outcome) -> Complete | None:
        """The outcome if it is a result small enough to be cached, else None."""
        if isinstance(outcome, Complete) and size_of(outcome.result) <= self._max_entry_bytes:
            return outcome
        return None

    def _keep(self, shared_read: SharedRead, outcome: Complete, hints: Hints, now: float) -> Kept:
        keys = shared_read.leader.keys
        key = keys.public if hints.public else keys.own
        if hints.public:
            self._public[key] = len(key.uri)
        changes = self._watch(key)
        fresh_until = now + self._life(shared_read, hints)
        stale_until = fresh_until + self._spec.cache.stale_if_error
        if stale_until <= now:
            return Kept(watches=changes)
        kept = Complete(_copied(outcome.result), outcome.is_error, ResultFindings())
        evicted = self.store.put(key, CachedResult(kept, fresh_until, stale_until, ttl_given=hints.ttl is not None))
        return Kept(True, evicted, changes)

    def _life(self, shared_read: SharedRead, hints: Hints) -> float:
        """Seconds that a result stays fresh.

        Without end while the resource is watched; else the upstream's TTL, else the configured one, else none.
        """
        if shared_read.watch is not None and self._watches.holds(shared_read.watch):
            return _FOREVER
        if hints.ttl is not None:
            return hints.ttl
        ttl = self._spec.cache.ttl.items()
        return next((seconds for glob, seconds in ttl if fnmatchcase(shared_read.key.uri, glob)), 0.0)

    def _watch(self, key: CacheKey) -> WatchChanges:
        """Watches the resource of a cached entry, where the settings ask for it and the shared link reports changes."""
        reported = self._up.get(None) and self._reports_updates and not self._deaf
        if not self._spec.cache.coherent or key.owner is not None or not reported:
            return _NO_CHANGES
        changes = self._watches.want(key.uri)
        for watch in changes.ended:
            self.store.drop_uri(canonical(watch.uri))
        return changes

    def _drop(self, keys: ReaderKeys) -> None:
        """Drops the entries that a newer answer replaces."""
        self.store.drop(keys.own)
        self.store.drop(keys.public)
        self._public.pop(keys.public, None)

    def _remove(self, shared_read: SharedRead) -> bool:
        """Removes a shared read. Returns False if an invalidation since it began has removed it already."""
        found = self._shared_reads.get(shared_read.key) is shared_read
        if found:
            del self._shared_reads[shared_read.key]
        return found

    def _detach(self, shared_reads: Iterable[SharedRead]) -> None:
        for shared_read in list(shared_reads):
            self._remove(shared_read)


def unreachable(outcome: Outcome) -> bool:
    """Whether the outcome says that the upstream is down or too slow, and nothing about the resource."""
    return type(outcome) is Failed and outcome.reason in (Reason.UNAVAILABLE, Reason.TIMEOUT)


def _only_subject(params: Params, row: Method) -> str | None:
    """The subject, if the request holds nothing else that could affect its result.

    caching, "Cache Key": in particular, retries with `inputResponses` or `requestState` MUST NOT be cached.
    """
    if row.subject_key is None or row.subject_key not in params:
        return None
    if len(params) > 1 and (len(params) > 2 or "_meta" not in params or not _is_harmless(params["_meta"])):
        return None
    return parse_text(params[row.subject_key])


def _is_harmless(meta: Raw) -> bool:
    try:
        return parse_object(meta).keys() <= _HARMLESS_META
    except InvalidMessage:
        return False


def _hit(entry: CachedResult, now: float) -> Hit:
    return Hit(_aged(entry, now)) if now < entry.fresh_until else Hit(_marked(entry, now), stale=True)


def _aged(entry: CachedResult, now: float) -> Complete:
    """The result with what remains of its `ttlMs`, so that the next cache keeps it no longer."""
    if not entry.ttl_given or entry.fresh_until == _FOREVER:
        return entry.result
    left = int((entry.fresh_until - now) * 1000)
    return replace(entry.result, result={**entry.result.result, "ttlMs": raw(left)})


def _marked(entry: CachedResult, now: float) -> Complete:
    """The result, marked as stale in its `_meta`."""
    members = {**entry.result.result}
    mark = {META_STALE: {"forMs": int((now - entry.fresh_until) * 1000)}}
    members["_meta"] = raw({**object_or_empty(members.get("_meta", EMPTY_OBJECT)), **mark})
    if entry.ttl_given:
        members["ttlMs"] = raw(0)
    return Complete(members, entry.result.is_error)


def _copied(result: Params) -> Params:
    """A copy of the values: each original value keeps the whole message that it came in alive."""
    return {key: value.copy() for key, value in result.items()}
