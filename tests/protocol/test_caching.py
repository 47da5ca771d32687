"""The twin of `mcproxy.protocol.caching`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcproxy.protocol.caching import LONGEST_TTL, UNSAID, Hints, least, read_hints, repaired_hints
from mcproxy.protocol.jsonrpc import first_level, raw


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


@pytest.mark.parametrize(
    ("given", "repaired"),
    [
        (b"-5", 0),
        (b"null", 0),
        (b'"60000"', 0),
        (b"{}", 0),
        (b"true", 0),
        (b"1500.7", 1500),
        (b"1e3", 1000),
        (b"1e300", 365 * 86_400_000),
        (b"9" * 30, 365 * 86_400_000),
        (b"-0", 0),
    ],
)
def test_a_time_that_the_schema_does_not_have_is_repaired(given: bytes, repaired: int) -> None:
    assert repaired_hints({"ttlMs": Raw(given)}) == {"ttlMs": raw(repaired)}


@pytest.mark.parametrize("given", [b"null", b"1", b'"shared"', b'["public"]', b'"Public"'])
def test_a_scope_that_the_schema_does_not_have_is_private(given: bytes) -> None:
    assert repaired_hints({"cacheScope": Raw(given)}) == {"cacheScope": raw("private")}


def test_hints_as_the_schema_has_them_stay() -> None:
    for ttl in (0, 1, 60_000, 365 * 86_400_000):
        for scope in ("public", "private"):
            assert repaired_hints({"ttlMs": raw(ttl), "cacheScope": raw(scope)}) == {}
    assert repaired_hints({}) == {}
    assert repaired_hints({"cacheScope": Raw(b'"p\\u0075blic"')}) == {"cacheScope": raw("public")}
