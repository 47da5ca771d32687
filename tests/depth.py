"""How deep tests go: in CI as deep as they can, and on a developer's machine as deep as five minutes let them.

There a property is tried with a quarter of its examples (`pytest --hypothesis-profile ci` tries all), some tests that
all SDKs play are played by a few, of the pairs of players and servers some meet, and most gateways are forked
(`tests.forking`): `CI=1 make test` leaves none out, and starts each. No example fails by the clock, which tells more of
the machine than of us.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from typing import Final, TypeVar

from hypothesis import HealthCheck, settings

IN_CI: Final = bool(os.environ.get("CI"))
T = TypeVar("T")
S = TypeVar("S")

ALL: Final = 100
"""Examples of a property that asks for no number of its own."""


def load_profile(chosen: str | None) -> None:
    """Loads the profile that was chosen, or the one of this place."""
    untimed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("ci", settings.get_profile("ci"), max_examples=ALL, **untimed)
    settings.register_profile("quick", settings.get_profile("default"), max_examples=ALL // 4, **untimed)
    settings.load_profile(chosen or ("ci" if IN_CI else "quick"))


def examples(number: int) -> int:
    """So many examples in CI, and elsewhere in proportion."""
    return max(1, number * settings().max_examples // ALL)


def sampled(kinds: Sequence[T], one_in: int) -> Sequence[T]:
    """All of them in CI, and elsewhere the last of each so many."""
    return kinds if IN_CI else kinds[one_in - 1 :: one_in]


def sampled_pairs(some: Sequence[S], others: Sequence[T], one_in: int) -> list[tuple[S, T]]:
    """All pairs in CI, and elsewhere one of so many: each of either side is in some, if there are `one_in` of both."""
    pairs = product(enumerate(some), enumerate(others))
    return [(one, other) for (row, one), (column, other) in pairs if IN_CI or (row + column) % one_in == 0]
