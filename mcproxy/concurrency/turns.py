"""Long work in steps, between which other tasks get a turn: a generator that yields after each step."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import anyio

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields after each step; returns the result of the work."""


async def in_turns(steps: Steps[T]) -> T:
    """The result of the work. If cancelled between two steps, the rest is not done."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result
        await anyio.lowlevel.checkpoint()


def at_once(steps: Steps[T]) -> T:
    """The result of the work, without a turn for others: where it is known to be little, or nobody can wait."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result


class Turns:
    """Several pieces of long work, of which one has a step between two turns of other tasks, in order."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def take(self, steps: Steps[T]) -> T:
        """As `in_turns`."""
        while True:
            async with self._lock:
                try:
                    next(steps)
                except StopIteration as ended:
                    result: T = ended.value
                    return result
