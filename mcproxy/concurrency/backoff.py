"""Exponential backoff with jitter (requirement R3): a pure function of the number of failures, and of chance."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST = 0.5
LONGEST = 60.0
"""Seconds."""


def delay(failures: int, chance: Callable[[], float] = random.random) -> float:
    """Seconds to wait: doubled with each failure up to LONGEST, half of it random, so that many peers spread out."""
    most = min(LONGEST, FIRST * 2.0 ** min(failures, 10))
    return most * (0.5 + chance() / 2)
