"""Cached results, bounded in bytes: one store for each upstream with a limit of its own, and a limit for all of them.

A full store evicts its least recently used entry; where all together are full, the one that holds most does. Knows no
clock: which entries are still fresh is for `policy` to judge.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from mcproxy.call.calls import Complete
from mcproxy.call.identity import LinkOwner
from mcproxy.catalog.uris import canonical
from mcproxy.protocol.jsonrpc import size_of

_OVERHEAD: Final = 1024
"""Bytes that an entry takes beside its URI and its result, rounded up."""


class CacheKey(msgspec.Struct, frozen=True, cache_hash=True):
    """Which resource of the upstream, over whose link, for whom."""

    owner: LinkOwner
    uri: str
    principal: str | None
    """The name of the only principal that may have the result; None for every principal."""


class ReaderKeys(msgspec.Struct, frozen=True):
    """The keys under which one caller may find a resource: its own entry and the public one; the two may be equal."""

    own: CacheKey
    public: CacheKey


class CachedResult(msgspec.Struct, frozen=True):
    """A result and its times on the reader's clock.

    It is fresh until `fresh_until`; until `stale_until` it may serve while the upstream gives no answer.
    """

    result: Complete
    fresh_until: float
    stale_until: float
    ttl_given: bool = False
    """Whether the result states a `ttlMs`."""
    weight: int = 0
    """Bytes of the entry, its URI included; set by the store."""


class CacheStore:
    """The entries of one upstream, by key and by the canonical spelling of their URI."""

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        """Bytes of all entries."""
        self._max_bytes = max_bytes
        self._entries: OrderedDict[CacheKey, CachedResult] = OrderedDict()
        """Least recently used first."""
        self._by_uri: dict[str, set[CacheKey]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CacheKey) -> CachedResult | None:
        """The entry, now the most recently used."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: CacheKey, entry: CachedResult) -> int:
        """Adds the entry and returns how many were evicted. One larger than the whole store is not added."""
        self.drop(key)
        # The result is held twice: as it came, and in the names of the endpoint that showed it last.
        weight = _OVERHEAD + 2 * (sys.getsizeof(key.uri) + size_of(entry.result.result))
        if weight > self._max_bytes:
            return 0
        evicted = 0
        while self.bytes + weight > self._max_bytes:
            self.evict()
            evicted += 1
        self._entries[key] = replace(entry, weight=weight)
        self.bytes += weight
        self._by_uri.setdefault(canonical(key.uri), set()).add(key)
        return evicted

    def evict(self) -> None:
        """Drops the least recently used entry."""
        self._forget(*self._entries.popitem(last=False))

    def drop(self, key: CacheKey) -> None:
        """Drops one entry, if present."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._forget(key, entry)

    def drop_uri(self, uri: str) -> None:
        """Drops all entries of `uri`, a canonical spelling, for every reader."""
        for key in list(self._by_uri.get(uri, ())):
            self.drop(key)

    def clear(self) -> None:
        self._entries.clear()
        self.bytes = 0
        self._by_uri.clear()

    def age(self, owner: LinkOwner, now: float, stale_for: float) -> None:
        """Makes all that was read over the link of `owner` stale from `now` on.

        Drops it where no stale entries are kept.
        """
        for key, entry in [(key, entry) for key, entry in self._entries.items() if key.owner == owner]:
            fresh_until = min(entry.fresh_until, now)
            stale_until = min(entry.stale_until, fresh_until + stale_for)
            if stale_until > now:
                self._entries[key] = replace(entry, fresh_until=fresh_until, stale_until=stale_until)
            else:
                self.drop(key)

    def _forget(self, key: CacheKey, entry: CachedResult) -> None:
        self.bytes -= entry.weight
        uri = canonical(key.uri)
        self._by_uri[uri].discard(key)
        if not self._by_uri[uri]:
            del self._by_uri[uri]


def fit(stores: Iterable[CacheStore], max_bytes: int) -> list[CacheStore]:
    """Evicts until all stores together hold at most `max_bytes`. Returns the store of each evicted entry."""
    stores = list(stores)
    evicted_from = []
    while sum(store.bytes for store in stores) > max_bytes:
        heaviest = max(stores, key=attrgetter("bytes"))
        heaviest.evict()
        evicted_from.append(heaviest)
    return evicted_from
