"""One replica's part of a limit that replicas share: how much is reserved, used, and to be asked for. Sans-I/O.

Several processes that share a limit each reserve some of it in advance, so that no call waits for the others. A process
that waits for an answer may use one chunk more than it reserved; so all of them together can exceed a limit by at most
one chunk each.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final, Protocol

import msgspec

RETRY: Final = 1.0
"""Seconds, at the least, between two requests for a count of which nothing is left."""

CHUNKS: Final = 100
"""Into how many chunks a limit is divided."""

CounterKey = tuple[str, ...]
"""A limit's name, and what it counts apart."""


class Measure(Enum):
    """What a limit counts; the value is its name where counts are kept."""

    RATE = "rate"
    DAILY = "daily"
    AT_ONCE = "at_once"


class Reservation(msgspec.Struct, eq=False):
    """The part of this process in one count.

    `used` and `granted` count from the beginning, so that a request that is sent twice is granted once. Of calls at
    once, `used` is how many run.
    """

    key: CounterKey
    measure: Measure
    id: str
    """Unlike that of any other reservation, in any process."""
    window: float = 0
    """The number of the day, from 1970, of a daily count."""
    limit: int = 0
    """How many: a day, at once, or in a burst."""
    rate: float = 0
    """Calls per second, where that is what is counted."""
    chunk: int = 0
    """How many are reserved in advance; with 0 each call is reserved by itself."""
    used: int = 0
    granted: int = 0
    others: int = 0
    """What other processes had reserved of a daily count, or of calls at once, when this one asked last."""
    waiting: int = 0
    """Calls that wait until they are reserved."""
    closed_until: float = -math.inf
    """When a chunk may be used again without being reserved (monotonic): nothing was left when this process asked."""
    retry_at: float = -math.inf
    """When to ask next for more, where nothing was left (monotonic)."""
    is_over: bool = False
    """Whether it will not be used any more: what is left of it is given back."""

    def is_due(self, now: float) -> bool:
        """Whether the store may be asked now: more may be there again, or something is to be given back."""
        return now >= self.retry_at or self.granted > self.wanted

    def set_limit(self, limit: int, rate: float, *, exact: bool) -> None:
        """Takes over a limit of the settings and its rate; `exact` reserves no more than is needed."""
        self.limit, self.rate = limit, rate
        self.chunk = 0 if exact else max(1, math.ceil(limit / CHUNKS))

    @property
    def needed(self) -> int:
        """How many must be granted, from the beginning, so that no call waits that has begun or may begin."""
        return self.used + self.waiting

    @property
    def wanted(self) -> int:
        """How many should be granted: those that are needed, and a chunk in advance."""
        is_idle = self.measure is Measure.AT_ONCE and not self.used
        return self.needed + (0 if self.is_over or is_idle else self.chunk)

    @property
    def is_wanting(self) -> bool:
        """Whether to ask: less than half of a chunk is left, or more than one is to be given back."""
        left = self.granted - self.used
        if self.measure is Measure.AT_ONCE and left > (self.chunk if self.used else 0):
            return True
        return left * 2 < self.chunk

    def has_room(self, limit: int, now: float) -> bool:
        """Whether one more call may begin, of a caller whom `limit` is for."""
        if self._is_beyond(limit):
            return False
        if self.used < self.granted:
            return True
        if now < self.closed_until:
            return False
        # Nothing was left at the last question, and nobody knows when calls at once end. So one chunk may run in all,
        # instead of one more than is reserved: else each question would let another chunk begin.
        is_unknown = self.measure is Measure.AT_ONCE and self.closed_until > -math.inf
        return (self.used if is_unknown else self.used - self.granted) < self.chunk

    def is_open(self, limit: int, now: float) -> bool:
        """Whether there may be more for such a caller, if it is asked for."""
        is_certain = self.measure is Measure.DAILY and self._is_beyond(limit)  # other calls may have ended
        return now >= self.retry_at and not is_certain

    def _is_beyond(self, limit: int) -> bool:
        return self.measure is not Measure.RATE and self.others + self.used >= limit

    @property
    def is_urgent(self) -> bool:
        """Whether the next call has to wait, or is admitted without being reserved."""
        return self.granted < self.needed + (1 if self.chunk else 0) or self.granted > self.wanted

    def settle(self, granted: int, asked: int, others: int, wait: float, now: float) -> None:
        """Takes in the answer to a request for `asked`. `wait` is in how many seconds there will be more."""
        self.granted, self.others = granted, others
        is_exhausted = granted <= self.used and granted < asked
        self.closed_until = now + wait if is_exhausted else -math.inf
        self.retry_at = now + min(wait, RETRY) if is_exhausted else -math.inf


class Ledger(Protocol):
    """Where processes keep the counts that they share."""

    @property
    def is_away(self) -> bool:
        """Whether it does not answer: each process then goes by what it counts itself."""

    @property
    def members(self) -> int:
        """How many processes share the counts, this one among them."""

    def name(self) -> str:
        """An id for a new reservation."""

    def ask(self, reservation: Reservation) -> None:
        """Asks for what is wanted, or gives back what is not, at the next opportunity. Never blocks."""

    async def reserve(self, reservation: Reservation) -> None:
        """Asks now for what is wanted, and returns once that is answered or cannot be."""
