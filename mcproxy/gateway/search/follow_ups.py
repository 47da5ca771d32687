"""Whether a search was followed by a call of a tool that it found: for metrics alone. Bounded in number and time.

There is no session to go by: a caller is known by its principal, its endpoint and, where it has one, its session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from mcproxy.call.identity import Caller
from mcproxy.concurrency.clock import Clock

MAX_CALLERS: Final = 1000
"""Callers whose last search is remembered; of more, the oldest counts as followed by none."""
PATIENCE: Final = 600.0
"""Seconds after which a search counts as followed by none."""

_CallerKey = tuple[str, str, str | None]


class FollowUps:
    """`count` gets each search's end: "called" or "none"."""

    def __init__(self, now: Clock) -> None:
        self._now = now
        self._waiting: OrderedDict[_CallerKey, tuple[float, Sequence[str]]] = OrderedDict()
        """When each caller searched last, and the names that it found; the oldest first."""

    def searched(self, caller: Caller, found: Sequence[str]) -> int:
        """Notes a search; returns how many earlier ones are over by it, and were followed by no call."""
        key, now = _key(caller), self._now()
        unfollowed = 0 if self._waiting.pop(key, None) is None else 1
        self._waiting[key] = now, found
        while self._waiting:
            at, _ = next(iter(self._waiting.values()))
            if len(self._waiting) <= MAX_CALLERS and now - at <= PATIENCE:
                break
            self._waiting.popitem(last=False)
            unfollowed += 1
        return unfollowed

    def called(self, caller: Caller, tool: str) -> bool:
        """Whether a search of the caller found that tool, and this call is the first to follow it."""
        if not self._waiting:
            return False
        key = _key(caller)
        waiting = self._waiting.get(key)
        if waiting is None or tool not in waiting[1]:
            return False
        del self._waiting[key]
        return self._now() - waiting[0] <= PATIENCE


def _key(caller: Caller) -> _CallerKey:
    return caller.principal.name, caller.endpoint, caller.session
