"""The counters of limits, bounded in number so that no eviction gives a caller a new allowance. Sans-I/O.

Beyond the bound, the owner with the most counters loses them: they are merged into one counter for that owner,
which also counts calls of further tools. Does not decide who is admitted: `limits` does.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from mcproxy.features.limits.reservations import CounterKey, Measure, Reservation

PROBES: Final = 64
"""The most counters to examine when looking for one to drop."""


class CounterPlace(msgspec.Struct, frozen=True):
    """Identifies the counter for a call."""

    key: CounterKey
    owner: str
    """Who the counter belongs to: the principal, or the upstream if callers share it."""
    merged: CounterKey | None = None
    """The key of the owner's counter for all its tools of the upstream; None if this key is not for a single tool."""


class Count(msgspec.Struct, eq=False):
    """The counter of one key."""

    place: CounterPlace
    stored: bool = False
    """Whether this counter is stored, so that the next call of its key counts here."""
    running: int = 0
    day: float = 0
    """The day that `today` counts, as days since 1970."""
    today: int = 0
    spent: bool = False
    """Whether the daily limit was reached on that day."""
    full_at: float = -math.inf
    """The time at which its bucket will be full again without further calls: the bucket's whole state (as in GCRA)."""
    is_merged: bool = False
    """Whether other counters were merged into it."""
    reserved: dict[Measure, Reservation] | None = None
    """This process's reservations, if several share the count."""

    def is_idle(self, now: float, day: float) -> bool:
        """Whether it equals a new counter."""
        if self.full_at > now or self.running or (self.today and self.day == day):
            return False
        reserved = () if self.reserved is None else self.reserved.values()
        return not any(reservation.waiting or reservation.closed_until > now for reservation in reserved)

    def is_spent(self, day: float) -> bool:
        return self.spent and self.day == day

    def merge(self, other: Count) -> None:
        """Counts at least as much as the other."""
        if other.day > self.day:
            self.day, self.today, self.spent = other.day, other.today, other.spent
        elif other.day == self.day:
            self.today, self.spent = max(self.today, other.today), self.spent or other.spent
        self.full_at = max(self.full_at, other.full_at)
        self.is_merged = True


class Counters:
    """At most `most` counters."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._stored: OrderedDict[CounterKey, Count] = OrderedDict()
        """Least recently used first."""
        self._dropped: dict[CounterKey, Count] = {}
        """Dropped counters whose calls are still running."""
        self._owned: dict[str, dict[CounterKey, None]] = {}
        """The keys of each owner's counters, oldest first."""
        self._by_size: dict[int, dict[str, None]] = {}
        """The owners by their number of counters."""
        self._largest = 0

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def running(self) -> int:
        """The number of dropped counters whose calls are still running."""
        return len(self._dropped)

    def __iter__(self) -> Iterator[Count]:
        yield from self._stored.values()
        yield from self._dropped.values()

    def find(self, place: CounterPlace) -> Count:
        """The counter for calls of a key. A new one is not stored: a refused call leaves nothing behind."""
        if (found := self._get(place.key)) is not None:
            return found
        if place.merged is not None:
            merged = self._get(place.merged)
            if merged is not None and merged.is_merged:
                return merged
        return Count(place)

    def use(self, count: Count) -> None:
        """Stores a counter, or notes that it was used."""
        key = count.place.key
        if count.stored:
            self._stored.move_to_end(key)
            return
        self._dropped.pop(key, None)
        self._stored[key] = count
        count.stored = True
        owned = self._owned.setdefault(count.place.owner, {})
        owned[key] = None
        self._resize(count.place.owner, len(owned) - 1, len(owned))

    def ended(self, count: Count) -> bool:
        """Forgets a counter that was dropped, once none of its calls runs; returns whether it did."""
        return not count.stored and not count.running and self._dropped.pop(count.place.key, None) is not None

    def sweep(self, now: float, day: float) -> list[Count]:
        """Drops idle counters, and returns them."""
        idle = []
        while self._stored and (count := next(iter(self._stored.values()))).is_idle(now, day):
            self._drop(count)
            idle.append(count)
        return idle

    def drop_one(self, day: float, *, remembered: bool) -> Count | None:
        """Drops a counter of the owner with the most, and returns it.

        None if dropping any counter would give a caller a new daily allowance. It never does if counts are `remembered`
        elsewhere.
        """
        count = self._of_largest(day) or self._least_used(day, remembered)
        if count is None:
            return None
        self._drop(count)
        merged = count.place.merged
        if merged is not None and not remembered:
            rest = self._get(merged) or Count(CounterPlace(merged, count.place.owner))
            rest.merge(count)
            self.use(rest)
        return count

    def _get(self, key: CounterKey) -> Count | None:
        return self._stored.get(key) or self._dropped.get(key)

    def _of_largest(self, day: float) -> Count | None:
        """A counter that can be merged, of the owner with the most; one that is not spent if there is one."""
        owned = self._owned[next(iter(self._by_size[self._largest]))]
        spent: Count | None = None
        for key in list(islice(owned, PROBES)):
            count = self._stored[key]
            if count.place.merged is not None:
                if not count.is_spent(day):
                    return count
                spent = spent or count
            del owned[key]  # next time, others are examined first
            owned[key] = None
        return spent

    def _least_used(self, day: float, remembered: bool) -> Count | None:
        for _ in range(min(PROBES, len(self._stored))):
            key, count = next(iter(self._stored.items()))
            if remembered or not count.is_spent(day):
                return count
            self._stored.move_to_end(key)
        return None

    def _drop(self, count: Count) -> None:
        key, owner = count.place.key, count.place.owner
        del self._stored[key]
        count.stored = False
        if count.running:
            self._dropped[key] = count
        owned = self._owned[owner]
        del owned[key]
        self._resize(owner, len(owned) + 1, len(owned))
        if not owned:
            del self._owned[owner]

    def _resize(self, owner: str, before: int, after: int) -> None:
        if before:
            same = self._by_size[before]
            del same[owner]
            if not same:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[owner] = None
        if after > self._largest or self._largest not in self._by_size:
            self._largest = after
