from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from mcproxy.protocol.jsonrpc import raw
from mcproxy.upstream.stateless.subscriptions import SPARE, ListenFilter, announced

TOOLS = frozenset({"toolsListChanged"})


def test_it_asks_for_the_lists_that_the_server_says_it_tells_of() -> None:
    capabilities = {"tools": raw({"listChanged": True}), "prompts": raw({}), "resources": raw([])}
    assert announced(capabilities) == TOOLS


def test_a_uri_may_be_acknowledged_in_another_spelling() -> None:
    asked = ListenFilter(uris=frozenset({"HTTP://A", "x:y"}))
    assert asked.agreed({"notifications": raw({"resourceSubscriptions": ["http://a/"]})}).uris == {"HTTP://A"}


def test_an_acknowledgement_may_write_null_for_what_it_leaves_out() -> None:
    said = {"toolsListChanged": True, "promptsListChanged": None, "resourceSubscriptions": None, "taskIds": None}
    assert ListenFilter(TOOLS, frozenset({"a:1"})).agreed({"notifications": raw(said)}) == ListenFilter(TOOLS)


@pytest.mark.parametrize("said", [[], {"resourceSubscriptions": [1]}, {"resourceSubscriptions": "a:1"}])
def test_an_unreadable_acknowledgement_agrees_to_nothing(said: Any) -> None:
    assert not ListenFilter(TOOLS, frozenset({"a:1"})).agreed({"notifications": raw(said)})


@pytest.mark.parametrize("member", ["resourceSubscriptions", "taskIds"])
def test_r78_an_acknowledgement_that_names_far_more_than_was_asked_for_is_not_read(member: str) -> None:
    asked = ListenFilter(TOOLS, frozenset({"a:1"}), frozenset({"a:1"}))
    names = ["a:1", *(f"a:{number}" for number in range(2, 100_000))]
    assert asked.agreed({"notifications": raw({member: names[:SPARE]})}).named
    params = {"notifications": raw({member: names})}
    tracemalloc.start()
    try:
        assert not asked.agreed(params)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(params["notifications"])
