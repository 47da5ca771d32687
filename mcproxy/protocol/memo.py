"""Remember results of a pure function of bytes or text, for short ones: long ones cost memory, and rarely repeat."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def remember_short(longest: int, most: int = 256) -> Callable[[F], F]:
    """Keeps the `most` recently used results whose first argument has at most `longest` bytes or characters.

    Arguments are given by position, and hashable.
    """

    def decorate(function: F) -> F:
        cached = lru_cache(most)(function)

        def remembering(data: bytes | str, *args: Any) -> Any:
            return cached(data, *args) if len(data) <= longest else function(data, *args)

        return cast(F, remembering)

    return decorate
