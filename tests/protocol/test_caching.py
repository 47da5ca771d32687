"""The twin of `mcproxy.protocol.caching`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.protocol.caching import LONGEST_TTL, UNSAID, Hints, least, read_hints
from mcproxy.protocol.jsonrpc import first_level


def test_what_is_said_is_read() -> None:
    assert read_hints(first_level({"ttlMs": 1500, "cacheScope": "public", "tools": []})) == Hints(1.5, public=True)
    assert read_hints(first_level({"ttlMs": 0, "cacheScope": "private"})) == Hints(0.0)


def test_what_is_not_said_is_private_and_of_no_time() -> None:
    assert read_hints(first_level({"tools": []})) == UNSAID == Hints(None, public=False)


@pytest.mark.parametrize("ttl", [-1, "60000", None, [], {}, True])
def test_a_time_that_makes_no_sense_is_none(ttl: object) -> None:
    assert read_hints(first_level({"ttlMs": ttl, "cacheScope": "public"})) == Hints(0.0, public=True)


def test_no_time_is_without_end() -> None:
    assert read_hints(first_level({"ttlMs": 10**300})).ttl == LONGEST_TTL


@pytest.mark.parametrize("scope", ["Public", "shared", 7, None, ["public"]])
def test_only_public_is_public(scope: object) -> None:
    assert not read_hints(first_level({"cacheScope": scope})).public


ANY = st.builds(Hints, st.none() | st.floats(0, 1e6), st.booleans())


@given(st.lists(ANY, min_size=1))
def test_r36_a_list_in_pages_lasts_as_long_as_the_first_to_go_and_is_as_private_as_the_most(pages: list[Hints]) -> None:
    together = least(pages)
    assert together.ttl == (None if any(p.ttl is None for p in pages) else min(p.ttl or 0.0 for p in pages))
    assert together.public == (not any(not p.public for p in pages))


def test_no_pages_say_nothing() -> None:
    assert least([]) == UNSAID
