"""How many logins may be under way at once, and which of them is forgotten for one more. Keeps none itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

MAX_LOGINS: Final = 1000
"""Logins in progress at once, of all principals."""


def crowded_out(principals: Mapping[str, str]) -> str | None:
    """The login to forget before another is begun; None while there is room.

    `principals` says for whom each login in progress is, oldest first. The principal with the most loses its oldest, so
    that whoever opens one link over and over pushes out no login of others.
    """
    if len(principals) < MAX_LOGINS:
        return None
    counts = Counter(principals.values())
    most = max(counts.values())
    return next(login for login, principal in principals.items() if counts[principal] == most)
