"""One timer for many deadlines of equal length: calls `expired()` on each waiter whose time is over.

Nearly all waiters leave before their deadline, so that a timer each would be set and cancelled in vain.
"""

from __future__ import annotations

import asyncio
import math
from contextvars import Context
from itertools import takewhile
from typing import Protocol


class Waiter(Protocol):
    """Compared and hashed by identity."""

    def expired(self) -> None:
        """Called once, when its deadline has passed."""


class Deadlines:
    """Deadlines of `seconds` each, from when a waiter is added. Make it while an asyncio loop runs."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        """The length of every deadline; a change also moves the pending ones."""
        # Kept, since asking for it is a system call before Python 3.12.
        self._loop = asyncio.get_running_loop()
        self._started: dict[Waiter, float] = {}
        """The time at which each waiter was added, by the clock of the loop, oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def __len__(self) -> int:
        return len(self._started)

    def add(self, waiter: Waiter) -> None:
        """Starts the deadline of a waiter that is not waiting; it ends with `expired()`, or with `discard`."""
        now = self._loop.time()
        self._started[waiter] = now
        until = now + self.seconds
        if until < self._timer_at:
            self._set_timer(until)

    def discard(self, waiter: Waiter) -> None:
        """Idempotent."""
        self._started.pop(waiter, None)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # In an empty context: the timer outlives the call that sets it.
        self._timer = self._loop.call_at(when, self._expire, context=Context())
        self._timer_at = when

    def _expire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        horizon = self._loop.time() - self.seconds
        try:
            for waiter, _ in list(takewhile(lambda entry: entry[1] <= horizon, self._started.items())):
                if self._started.pop(waiter, None) is not None:
                    waiter.expired()
        finally:
            oldest = next(iter(self._started.values()), None)
            if oldest is not None:
                self._set_timer(oldest + self.seconds)
