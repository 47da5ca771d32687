"""How many examples a property is tried with: all of them in CI, and a quarter on a developer's machine.

`pytest --hypothesis-profile ci` tries all. No example fails by the clock, which tells more of the machine than of us.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

ALL: Final = 100
"""Examples of a property that asks for no number of its own."""


def load_profile(chosen: str | None) -> None:
    """Loads the profile that was chosen, or the one of this place."""
    untimed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("ci", settings.get_profile("ci"), max_examples=ALL, **untimed)
    settings.register_profile("quick", settings.get_profile("default"), max_examples=ALL // 4, **untimed)
    settings.load_profile(chosen or ("ci" if os.environ.get("CI") else "quick"))


def examples(number: int) -> int:
    """So many examples in CI, and elsewhere in proportion."""
    return max(1, number * settings().max_examples // ALL)
