"""One replica's part of a limit that replicas share: how much it has reserved, used, and still needs. Sans-I/O.

Processes that share a limit each reserve some of it in advance, so that no call waits for another process. A process
that is waiting for an answer may use one chunk more than it has reserved, so together the processes can exceed a limit
by at most one chunk each.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final, Protocol

import msgspec

RETRY: Final = 1.0
"""The fewest seconds between two requests for a count that has nothing left."""

CHUNKS: Final = 100
"""The number of chunks that a limit is divided into."""

CounterKey = tuple[str, ...]
"""A limit's name, and the values that identify the counter."""


class Measure(Enum):
    """The quantity that a limit counts; the value is its name in the store."""

    RATE = "rate"
    DAILY = "daily"
    AT_ONCE = "at_once"


class Reservation(msgspec.Struct, eq=False):
    """This process's share of one count.

    `used` and `granted` are running totals, so that a request that is sent twice is granted once. For concurrent calls,
    `used` is the number of running calls.
    """

    key: CounterKey
    measure: Measure
    id: str
    """Unique among the reservations of all processes."""
    window: float = 0
    """For a daily count, the day, as days since 1970."""
    limit: int = 0
    """The limit: calls a day, concurrent calls, or calls in a burst."""
    rate: float = 0
    """Calls per second, if the count is a rate."""
    chunk: int = 0
    """The number to reserve in advance; if 0, each call is reserved separately."""
    used: int = 0
    granted: int = 0
    others: int = 0
    """What other processes had reserved (for the day, or concurrently) when this one last asked."""
    waiting: int = 0
    """The number of calls that are waiting for a reservation."""
    closed_until: float = -math.inf
    """The monotonic time at which a chunk may be used unreserved again: nothing was left at the last request."""
    retry_at: float = -math.inf
    """The monotonic time of the next request for more, if nothing was left."""
    is_over: bool = False
    """Whether it is no longer in use, so that what is left is given back."""

    def is_due(self, now: float) -> bool:
        """Whether to ask the store now: more may be available again, or there is something to give back."""
        return now >= self.retry_at or self.granted > self.wanted

    def set_limit(self, limit: int, rate: float, *, exact: bool) -> None:
        """Sets the limit and its rate from the settings; with `exact`, no more is reserved than is needed."""
        self.limit, self.rate = limit, rate
        self.chunk = 0 if exact else max(1, math.ceil(limit / CHUNKS))

    @property
    def needed(self) -> int:
        """The total grant that is needed so that no call, running or about to begin, has to wait."""
        return self.used + self.waiting

    @property
    def wanted(self) -> int:
        """The total grant to ask for: what is needed, plus one chunk in advance."""
        is_idle = self.measure is Measure.AT_ONCE and not self.used
        return self.needed + (0 if self.is_over or is_idle else self.chunk)

    @property
    def is_wanting(self) -> bool:
        """Whether to ask: less than half a chunk is left, or more than one has to be given back."""
        left = self.granted - self.used
        if self.measure is Measure.AT_ONCE and left > (self.chunk if self.used else 0):
            return True
        return left * 2 < self.chunk

    def has_room(self, limit: int, now: float) -> bool:
        """Whether one more call may begin, for a caller with this `limit`."""
        if self._is_beyond(limit):
            return False
        if self.used < self.granted:
            return True
        if now < self.closed_until:
            return False
        # Nothing was left at the last request, and nobody knows when concurrent calls end. So at most one chunk may run
        # in total, rather than one more than is reserved; otherwise each request would let another chunk begin.
        is_unknown = self.measure is Measure.AT_ONCE and self.closed_until > -math.inf
        return (self.used if is_unknown else self.used - self.granted) < self.chunk

    def is_open(self, limit: int, now: float) -> bool:
        """Whether asking may yield more for a caller with this `limit`."""
        is_certain = self.measure is Measure.DAILY and self._is_beyond(limit)  # other calls may have ended
        return now >= self.retry_at and not is_certain

    def _is_beyond(self, limit: int) -> bool:
        return self.measure is not Measure.RATE and self.others + self.used >= limit

    @property
    def is_urgent(self) -> bool:
        """Whether the next call would have to wait, or be admitted without a reservation."""
        return self.granted < self.needed + (1 if self.chunk else 0) or self.granted > self.wanted

    def settle(self, granted: int, asked: int, others: int, wait: float, now: float) -> None:
        """Applies the answer to a request for `asked`. `wait` is the number of seconds until more is available."""
        self.granted, self.others = granted, others
        is_exhausted = granted <= self.used and granted < asked
        self.closed_until = now + wait if is_exhausted else -math.inf
        self.retry_at = now + min(wait, RETRY) if is_exhausted else -math.inf


class Ledger(Protocol):
    """The counts that several processes share."""

    @property
    def is_away(self) -> bool:
        """Whether it is down. Each process then uses its own counts."""

    @property
    def members(self) -> int:
        """The number of processes that share the counts, including this one."""

    def name(self) -> str:
        """An id for a new reservation."""

    def ask(self, reservation: Reservation) -> None:
        """Requests what is wanted, or gives back the rest, at the next opportunity. Never blocks."""

    async def reserve(self, reservation: Reservation) -> None:
        """Requests what is wanted now. Returns once there is an answer, or there cannot be one."""
