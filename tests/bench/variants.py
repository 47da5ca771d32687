"""What may be switched on in the gateway under test: configurations by name, merged into the plain one.

A variant without members is not there yet: its workloads are skipped, with a notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

PLAIN: Final = "plain"
GUARDED: Final = "guarded"
POLICIES: Final = "policies"
"""With a number behind it: so many rules, of which the last admits the load."""

VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    PLAIN: {"proxy": {}},
    # Access control, limits and the audit log.
    GUARDED: {},
    f"{POLICIES}-1": {},
    f"{POLICIES}-10": {},
    f"{POLICIES}-100": {},
}
"""Sections of the configuration, by variant."""


def merged(plain: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`plain` with the sections of `more`, member by member."""
    both = {**plain, **more}
    for key in plain.keys() & more.keys():
        if isinstance(plain[key], Mapping) and isinstance(more[key], Mapping):
            both[key] = merged(plain[key], more[key])
    return both
