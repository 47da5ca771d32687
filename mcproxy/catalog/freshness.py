"""How long a list may be cached, and whether callers may share it: the least of its parts (caching; requirement R36).

Pure: takes the time, in seconds of a monotonic clock, as an argument.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from mcproxy.protocol.caching import Hints


class Freshness(msgspec.Struct, frozen=True):
    """The freshness of one list of one upstream."""

    asked: float
    """When the list was requested."""
    until: float | None = None
    """When its TTL expires; None if the upstream gave none."""
    public: bool = False

    def left(self, now: float) -> float:
        """Seconds for which it may still be kept."""
        return 0.0 if self.until is None else max(0.0, self.until - now)

    def over(self, now: float) -> bool:
        """Whether it had a TTL that has expired."""
        return self.until is not None and now >= self.until


DOUBTFUL: Final = Freshness(float("-inf"))
"""The freshness of a list that may have changed, or is unknown."""

NOT_LISTED: Final = Freshness(float("-inf"), public=True)
"""The freshness of a list that was never fetched: it adds nothing private, and may come at any moment."""


def stated(hints: Hints, asked: float) -> Freshness:
    """The freshness of a list requested at `asked`, when its TTL begins at the latest."""
    return Freshness(asked, None if hints.ttl is None else asked + hints.ttl, hints.public)


def hints_of(parts: Collection[Freshness], now: float) -> Hints:
    """The caching hints of a list merged from several."""
    left = min((part.left(now) for part in parts), default=0.0)
    return Hints(left, bool(parts) and all(part.public for part in parts))
