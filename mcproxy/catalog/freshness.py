"""How long a list is good for, and for whom: the least of what its parts say (2026-07-28, caching; requirement R36).

Pure: takes the time, in seconds of a clock that only goes forward, as an argument.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from mcproxy.protocol.caching import Hints


@dataclass(frozen=True, slots=True)
class Freshness:
    """Of one list of one upstream, as it came."""

    asked: float
    """When it was asked for."""
    until: float | None = None
    """None where the upstream said nothing: then it is good for no time, and told by notifications alone."""
    public: bool = False

    def left(self, now: float) -> float:
        """Seconds for which it may still be kept."""
        return 0.0 if self.until is None else max(0.0, self.until - now)

    def over(self, now: float) -> bool:
        """Whether it was good for some time, which has passed."""
        return self.until is not None and now >= self.until


DOUBTFUL: Final = Freshness(float("-inf"))
"""Of a list that may have changed, or of which nothing is known."""

NOT_LISTED: Final = Freshness(float("-inf"), public=True)
"""Of a list that is not known yet: it adds nothing that is private, and may come at any moment."""


def stated(hints: Hints, asked: float) -> Freshness:
    """Of a list that was asked for then: a peer's time begins no later than that."""
    return Freshness(asked, None if hints.ttl is None else asked + hints.ttl, hints.public)


def hints_of(parts: Collection[Freshness], now: float) -> Hints:
    """The hints of a list that is made of several. What is made of none says nothing of itself."""
    left = min((part.left(now) for part in parts), default=0.0)
    return Hints(left, bool(parts) and all(part.public for part in parts))
