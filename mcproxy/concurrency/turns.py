"""Long work in steps, between which other tasks have their turn: a generator that yields after each step."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import anyio

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields after each step; what it returns is what the work comes to."""


async def in_turns(steps: Steps[T]) -> T:
    """What the work comes to. Cancelled between two steps, it is not carried on."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result
        await anyio.lowlevel.checkpoint()
