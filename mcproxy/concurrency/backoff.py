"""Exponential backoff with jitter (requirement R3): pure functions of the number of failures, and of chance."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST = 0.5
LONGEST = 60.0
"""Seconds."""
RAREST = 3600.0
"""Seconds between attempts at a server that refuses for good, as one that wants a credential."""
PASSING_REFUSALS = 4
"""Refusals in a row from which attempts become rarer than after other failures."""


def delay(failures: int, chance: Callable[[], float] = random.random) -> float:
    """Seconds to wait: doubled with each failure up to LONGEST, half of it random, so that many peers spread out."""
    most = min(LONGEST, FIRST * 2.0 ** min(failures, 10))
    return most * (0.5 + chance() / 2)


def delay_after_refusals(refusals: int, chance: Callable[[], float] = random.random) -> float:
    """Seconds to wait after so many refusals that only a person can end: none at first, then up to an hour or more.

    A server that starts may refuse for a few seconds, as a proxy does before it knows the way; after that the delay
    quadruples.
    """
    if refusals < PASSING_REFUSALS:
        return 0.0
    return min(RAREST, LONGEST * 4.0 ** min(refusals - PASSING_REFUSALS, 10)) * (1 + chance() / 8)
