"""Remember results of a pure function of bytes or text, for short ones: long ones cost memory, and rarely repeat."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V")


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


class Results(OrderedDict[str, V]):
    """The `most` newest results of a function, by the text that it was given: a mapping, which makes those it has not.

    For many texts at once: `map(results.__getitem__, texts)` takes no step of the interpreter for what is remembered.
    """

    def __init__(self, function: Callable[[str], V], most: int, longest: int = sys.maxsize) -> None:
        super().__init__()
        self._function = function
        self._most = most
        self._longest = longest

    def __missing__(self, text: str) -> V:
        result = self._function(text)
        if len(text) <= self._longest:
            if len(self) >= self._most:
                self.popitem(last=False)
            self[text] = result
        return result
