"""Who has waited for long enough. Says so, and does nothing about it.

All wait equally long, and nearly all are over before that: one timer is for all of them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import Context
from itertools import takewhile
from typing import Protocol


class Waiter(Protocol):
    """Compared and hashed by identity."""

    def waited(self) -> None:
        """Its time has come. Called once."""


class Deadlines:
    """`seconds` says for how long to wait, as of now."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._waiting: dict[Waiter, float] = {}
        """Since when, by the clock of the loop; first come first."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, waiting: Waiter) -> None:
        now = asyncio.get_running_loop().time()
        self._waiting[waiting] = now
        until = now + self._seconds()
        if until < self._alarm_at:
            self._look_at(until)

    def end(self, waiting: Waiter) -> None:
        """Idempotent."""
        self._waiting.pop(waiting, None)

    def _look_at(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        # In nobody's context: the alarm outlasts the call that it is set in.
        self._alarm = asyncio.get_running_loop().call_at(when, self._look, context=Context())
        self._alarm_at = when

    def _look(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        seconds = self._seconds()
        horizon = asyncio.get_running_loop().time() - seconds
        try:
            for waiting, _ in list(takewhile(lambda entry: entry[1] <= horizon, self._waiting.items())):
                if self._waiting.pop(waiting, None) is not None:
                    waiting.waited()
        finally:
            first = next(iter(self._waiting.values()), None)
            if first is not None:
                self._look_at(first + seconds)
