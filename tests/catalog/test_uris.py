"""The twin of `mcproxy.catalog.uris`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AnyUrl, ValidationError

from mcproxy.catalog.uris import canonical


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("HTTP://Ex.COM", "http://ex.com/"),
        ("http://ex.com?q=A", "http://ex.com/?q=A"),
        ("http://User@Ex.com/P", "http://User@ex.com/P"),
        ("file:///a b/ü", "file:///a%20b/%C3%BC"),
        ("memo:A b", "memo:A%20b"),
        ("x://h/%c3%bc", "x://h/%C3%BC"),
        ("no uri at all", "no%20uri%20at%20all"),
        ("", ""),
    ],
)
def test_r63_respellings_have_one_canonical_form(given: str, expected: str) -> None:
    assert canonical(given) == expected


def test_r63_paths_and_opaque_parts_keep_their_case() -> None:
    assert canonical("file:///A") != canonical("file:///a")
    assert canonical("memo:A") != canonical("memo:a")


@given(st.text())
def test_canonical_is_final(uri: str) -> None:
    assert canonical(canonical(uri)) == canonical(uri)


@given(
    st.sampled_from(["http://Ex.com", "HTTP://ex.com", "file://", "gh+memo://", "gh+http://h"]),
    st.sampled_from(["", "/", "/a b", "/ü", "/x?q=ä b", "/%41", "/a#ö"]),
)
def test_r63_what_the_first_sdk_makes_of_a_uri_is_the_same_uri(head: str, tail: str) -> None:
    try:
        respelled = str(AnyUrl(head + tail))
    except ValidationError:
        return
    assert canonical(respelled) == canonical(head + tail)


@given(st.from_regex(r"[a-zA-Z]{1,2}:(//[a-zA-Z.@:]*)?", fullmatch=True), st.text("aZ9/:%?#@.~", max_size=8))
def test_what_needs_no_respelling_is_found_to_be_spelt_so_by_the_same_rules(head: str, rest: str) -> None:
    # With something to encode at its end, it is taken apart in any case.
    assert canonical(f"{head}{rest}x/é") == canonical(f"{head}{rest}x/") + "%C3%A9"
