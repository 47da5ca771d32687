"""How long to wait before the next attempt (requirement R3). A pure function of how many failed, and of chance."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST = 0.5
LONGEST = 60.0
"""Seconds."""


def delay(failures: int, chance: Callable[[], float] = random.random) -> float:
    """Doubles with each failure up to LONGEST; half of it is left to `chance`, so that a crowd spreads out."""
    most = min(LONGEST, FIRST * 2.0 ** min(failures, 10))
    return most * (0.5 + chance() / 2)
