"""Who has waited for long enough. Says so, and does nothing about it.

All wait equally long, and nearly all are over before that: one timer is for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import takewhile
from typing import Protocol


class Waiting(Protocol):
    """Compared and hashed by identity."""

    def waited(self) -> None:
        """Its time has come. Called once."""


class Patience:
    """`seconds` says for how long to wait, as of now. Who began under a longer wait comes before who began after."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._waiting: dict[Waiting, float] = {}
        """Until when, by the clock of the loop; first come first."""
        self._alarmed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, waiting: Waiting) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[waiting] = until = loop.time() + self._seconds()
        if not self._alarmed:
            self._alarmed = True
            loop.call_at(until, self._look)

    def end(self, waiting: Waiting) -> None:
        """Idempotent."""
        self._waiting.pop(waiting, None)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            for waiting, _ in list(takewhile(lambda entry: entry[1] <= now, self._waiting.items())):
                if self._waiting.pop(waiting, None) is not None:
                    waiting.waited()
        finally:
            self._look_again()

    def _look_again(self) -> None:
        """When the first of who still waits has waited, whatever became of the others."""
        first = next(iter(self._waiting.values()), None)
        self._alarmed = first is not None
        if first is not None:
            asyncio.get_running_loop().call_at(first, self._look)
