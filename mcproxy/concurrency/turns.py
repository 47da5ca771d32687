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
