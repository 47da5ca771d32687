"""What may be switched on in the gateway under test: configurations by name, merged into the plain one.

A variant with no section is not there yet: its workloads are skipped, with a notice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

Json = dict[str, Any]

PLAIN: Final = "plain"
GUARDED: Final = "guarded"
"""Keys, a policy of a thousand rules, limits that are never met, and the audit log."""
POLICIES: Final = "policies"
"""With a number behind it: so many rules, of which the last admits the load."""

SEARCHED: Final = "searched"
"""With an endpoint whose tools are found by search, at `/mcp/agent`."""

RULES: Final = (1, 10, 100, 1000)

KEY: Final = "mcproxy_bench"
"""What every request shows to every proxy. Only GUARDED asks for it."""


def _policy(rules: int) -> Json:
    """So many rules, of which the last allows what is called."""
    others = [{"upstreams": [f"other-{number}"], "tools": [f"tool-{number}-*"]} for number in range(1, rules)]
    return {"roles": {"everyone": {"allow": [*others, {"upstreams": ["u*"]}]}}}


def _guarded() -> Json:
    key = {"sha256": hashlib.sha256(KEY.encode()).hexdigest()}
    limits = {"each": {"per": ["principal", "tool"], "rate": 1_000_000, "at_once": 1_000_000, "daily": 1_000_000_000}}
    return {
        "authentication": {"keys": {"bench": [key]}},
        "policy": _policy(RULES[-1]),
        "limits": {"rules": limits},
        "audit": {"file": "audit.jsonl"},
    }


VARIANTS: Final[Mapping[str, Json]] = {
    PLAIN: {"proxy": {}},
    GUARDED: {"access": _guarded()},
    SEARCHED: {"endpoints": {"agent": {"discovery": "search"}}},
    **{f"{POLICIES}-{rules}": {"access": {"policy": _policy(rules)}} for rules in RULES},
}
"""Sections of the configuration, by name."""


def merged(plain: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`plain` with the sections of `more`, member by member."""
    both = {**plain, **more}
    for key in plain.keys() & more.keys():
        if isinstance(plain[key], Mapping) and isinstance(more[key], Mapping):
            both[key] = merged(plain[key], more[key])
    return both
