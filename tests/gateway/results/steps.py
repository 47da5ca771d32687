"""Work in steps, done at once."""

from __future__ import annotations

from typing import TypeVar

from mcproxy.concurrency.turns import Steps

T = TypeVar("T")


def result_of(steps: Steps[T]) -> T:
    """What the work comes to."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result
