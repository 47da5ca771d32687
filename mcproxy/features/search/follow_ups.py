"""Records, for metrics, whether a search led to a call of a tool that it found. Bounded in number and time.

A caller is identified by principal, endpoint and, if it has one, session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from mcproxy.call.identity import Caller
from mcproxy.concurrency.clock import Clock

MAX_CALLERS: Final = 1000
"""Callers whose last search is remembered; beyond that, the oldest search counts as not followed."""
PATIENCE: Final = 600.0
"""Seconds after which a search counts as not followed."""

_CallerKey = tuple[str, str, str | None]
_Search = tuple[float, Sequence[str]]
"""The time of a search, and the names that it found."""
_NO_SEARCH: Final[_Search] = (0.0, ())


class FollowUps:
    """The last search of each caller, until a call follows or it expires. Counts searches that no call followed."""

    def __init__(self, now: Clock) -> None:
        self._now = now
        self._waiting: OrderedDict[_CallerKey, _Search] = OrderedDict()
        """The last search of each caller, oldest first."""
        self._unfollowed = 0

    def searched(self, caller: Caller, found: Sequence[str]) -> None:
        """Records a search. This ends the caller's earlier search, and the oldest one beyond MAX_CALLERS."""
        key, waiting = _key(caller), self._waiting
        if waiting.pop(key, None) is not None:
            self._unfollowed += 1
        elif len(waiting) >= MAX_CALLERS:
            waiting.popitem(last=False)
            self._unfollowed += 1
        waiting[key] = self._now(), found

    def called(self, caller: Caller, tool: str) -> bool:
        """Whether the caller's last search found that tool, and this call is the first to follow it."""
        key = _key(caller)
        at, found = self._waiting.get(key, _NO_SEARCH)
        if tool not in found:
            return False
        del self._waiting[key]
        if self._now() - at > PATIENCE:
            self._unfollowed += 1
            return False
        return True

    def take_unfollowed(self) -> int:
        """The number of searches that ended without a call since this was last called."""
        now = self._now()
        while self._waiting and now - next(iter(self._waiting.values()))[0] > PATIENCE:
            self._waiting.popitem(last=False)
            self._unfollowed += 1
        taken, self._unfollowed = self._unfollowed, 0
        return taken


def _key(caller: Caller) -> _CallerKey:
    return caller.principal.name, caller.endpoint, caller.session
