"""What servers say that they tell of."""

from __future__ import annotations

import pytest

from mcproxy.protocol.capabilities import reports_updates, tells_changes
from mcproxy.protocol.jsonrpc import raw


@pytest.mark.parametrize("said", [{}, {"tools": {}}, {"tools": {"listChanged": False}}, {"tools": []}, {"tools": None}])
def test_a_malformed_announcement_of_changes_counts_as_none(said: dict[str, object]) -> None:
    assert not tells_changes({name: raw(value) for name, value in said.items()}, "tools")


def test_each_list_is_told_of_by_its_own_capability() -> None:
    capabilities = {"tools": raw({"listChanged": True}), "resources": raw({"subscribe": True})}
    assert tells_changes(capabilities, "tools")
    assert not tells_changes(capabilities, "resources")
    assert reports_updates(capabilities)
    assert not reports_updates({"resources": raw({"listChanged": True})})
    assert not reports_updates({"resources": raw("subscribe")})
