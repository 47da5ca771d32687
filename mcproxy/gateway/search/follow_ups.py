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
    """The last search of each caller, until a call follows it or it is over. Counts those that no call followed."""

    def __init__(self, now: Clock) -> None:
        self._now = now
        self._waiting: OrderedDict[_CallerKey, tuple[float, Sequence[str]]] = OrderedDict()
        """When each caller searched last, and the names that it found; the oldest first."""
        self._unfollowed = 0

    def searched(self, caller: Caller, found: Sequence[str]) -> None:
        """Notes a search; an earlier one of the same caller is over."""
        key = _key(caller)
        if self._waiting.pop(key, None) is not None:
            self._unfollowed += 1
        self._waiting[key] = self._now(), found
        self._drop()

    def called(self, caller: Caller, tool: str) -> bool:
        """Whether a search of the caller found that tool, and this call is the first to follow it."""
        if not self._waiting:
            return False
        self._drop()
        key = _key(caller)
        waiting = self._waiting.get(key)
        if waiting is None or tool not in waiting[1]:
            return False
        del self._waiting[key]
        return True

    def take_unfollowed(self) -> int:
        """How many searches are over that no call followed, since this was asked last."""
        self._drop()
        taken, self._unfollowed = self._unfollowed, 0
        return taken

    def _drop(self) -> None:
        """Ends searches whose time is over, and the oldest of more than MAX_CALLERS."""
        now = self._now()
        while self._waiting:
            at, _ = next(iter(self._waiting.values()))
            if len(self._waiting) <= MAX_CALLERS and now - at <= PATIENCE:
                break
            self._waiting.popitem(last=False)
            self._unfollowed += 1


def _key(caller: Caller) -> _CallerKey:
    return caller.principal.name, caller.endpoint, caller.session
