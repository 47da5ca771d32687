"""How soon repeated work on a key may begin again: at once after a quiet time, after growing pauses while it recurs.

Sans-I/O: the time is an argument, in seconds. `concurrency.coalescer` does such work.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class _Begun(NamedTuple):
    at: float
    pause: float


class Pace(Generic[K]):
    """The pause between two beginnings: `first` seconds, doubled up to `longest`, reset by a quiet time."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._begun: dict[K, _Begun] = {}

    def wait(self, key: K, now: float) -> float:
        """Seconds until work on `key` may begin again; 0 if it may now."""
        begun = self._begun.get(key)
        return 0.0 if begun is None else max(0.0, begun.at + begun.pause - now)

    def begin(self, key: K, now: float) -> None:
        """Notes that work on `key` begins at `now`."""
        begun = self._begun.get(key)
        follows = begun is not None and now - begun.at < 2 * begun.pause
        pause = min(2 * begun.pause, self._longest) if begun is not None and follows else self._first
        self._begun[key] = _Begun(now, pause)

    def forget(self, key: K) -> None:
        """Resets the pause of `key`."""
        self._begun.pop(key, None)
