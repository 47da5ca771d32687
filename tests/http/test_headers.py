"""Header fields of a message: names without case, and every value of a name that came more than once."""

from __future__ import annotations

from mcproxy.http.headers import Headers

ONCE = Headers.of([("Host", "here"), ("Accept", "a/b")])
TWICE = Headers.of([("Accept", "a/b"), ("ACCEPT", "c/d"), ("Host", "here")])


def test_names_are_compared_without_case() -> None:
    assert ONCE.get("host") == "here"
    assert "accept" in ONCE


def test_what_is_not_there_is_empty() -> None:
    assert ONCE.get("origin") is ONCE.joined("origin") is TWICE.joined("origin") is None
    assert list(ONCE.all("origin")) == list(TWICE.all("origin")) == []


def test_of_a_name_that_came_twice_all_is_known() -> None:
    assert TWICE.get("accept") == "a/b"
    assert list(TWICE.all("accept")) == ["a/b", "c/d"]
    assert list(TWICE.all("host")) == ["here"]
    assert TWICE.joined("accept") == "a/b, c/d"
