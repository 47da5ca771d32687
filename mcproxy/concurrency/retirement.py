"""Ends what a reload replaced: at once, or with the last call that uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import anyio

from mcproxy.concurrency.wakeup import Wakeup


class Retirable(Protocol):
    """An object that is closed at once, or with the last call that uses it."""

    async def retire(self) -> None:
        """Closes once nothing uses it; does not wait for that."""

    async def aclose(self) -> None:
        """Closes now. Idempotent."""


class Retirement:
    """Retires what a reload replaced."""

    def __init__(self) -> None:
        self._replaced: list[Retirable] = []
        self._wanted = Wakeup()

    def take(self, replaced: Iterable[Retirable]) -> None:
        """Never blocks."""
        self._replaced.extend(replaced)
        self._wanted.notify_all()

    async def run(self, in_use: Callable[[], Iterable[Retirable]]) -> None:
        """Retires what it is given until cancelled; then closes the rest, and what is `in_use`."""
        try:
            while True:
                while self._replaced:
                    await self._replaced.pop().retire()
                await self._wanted.wait()
        finally:
            with anyio.CancelScope(shield=True):
                for each in (*self._replaced, *in_use()):
                    await each.aclose()
