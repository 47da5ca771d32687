from __future__ import annotations

from typing import Any

import pytest

from mcproxy.protocol.jsonrpc import raw
from mcproxy.upstream.stateless.listen_filter import ListenFilter, announced

TOOLS = frozenset({"toolsListChanged"})


def test_it_asks_for_the_lists_that_the_server_says_it_tells_of() -> None:
    capabilities = {"tools": raw({"listChanged": True}), "prompts": raw({}), "resources": raw([])}
    assert announced(capabilities) == TOOLS


def test_a_uri_may_be_acknowledged_in_another_spelling() -> None:
    asked = ListenFilter(uris=frozenset({"HTTP://A", "x:y"}))
    assert asked.agreed({"notifications": raw({"resourceSubscriptions": ["http://a/"]})}).uris == {"HTTP://A"}


@pytest.mark.parametrize("said", [[], {"resourceSubscriptions": [1]}, {"resourceSubscriptions": "a:1"}])
def test_an_unreadable_acknowledgement_agrees_to_nothing(said: Any) -> None:
    assert not ListenFilter(TOOLS, frozenset({"a:1"})).agreed({"notifications": raw(said)})
