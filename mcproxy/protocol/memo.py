"""Remember the results of a pure function of bytes, for short arguments: long ones cost memory, and rarely repeat."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def remember_short(
    longest: int, most: int = 256
) -> Callable[[Callable[Concatenate[bytes, P], R]], Callable[Concatenate[bytes, P], R]]:
    """Keeps the `most` recently used results whose first argument has at most `longest` bytes."""

    def decorate(function: Callable[Concatenate[bytes, P], R]) -> Callable[Concatenate[bytes, P], R]:
        cached = lru_cache(most)(function)

        def remembering(data: bytes, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if len(data) <= longest:
                return cached(data, *args, **kwargs)  # type: ignore[arg-type]  # all of them are hashable
            return function(data, *args, **kwargs)

        return remembering

    return decorate
