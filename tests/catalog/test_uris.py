"""The twin of `mcproxy.catalog.uris`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from posixpath import normpath
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AnyUrl, ValidationError

from mcproxy.catalog.uris import canonical, is_legal, plain, readings, spellings


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


@given(st.text())
def test_any_text_has_a_plain_form(text: str) -> None:
    assert isinstance(plain(text), str)


def test_dots_are_removed_from_paths_alone() -> None:
    assert plain("file:///a/./b/../c") == "file:///a/c"
    assert plain("file:///../../a") == "file:///a"
    assert plain("http://h/a?next=/../b") == "http://h/a?next=/../b"
    assert plain("file:///a/..") == "file:///"


SERVERS: dict[str, Callable[[str], str]] = {
    "decodes": unquote,
    "resolves": normpath,
    "takes a backslash for a slash": lambda path: path.replace("\\", "/"),
    "takes slashes for one": lambda path: re.sub("/+", "/", path),
    "drops the query": lambda path: path.partition("?")[0],
}


@given(
    st.lists(
        st.sampled_from(["pub", "x", "..", ".", "%2e%2e", "%252E.", "", "%2f", "\\", "%5c", "%25", "?", "srv"]),
        max_size=8,
    ),
    st.sampled_from(["/", "\\", "%2f", "%255c"]),
    st.lists(st.sampled_from(sorted(SERVERS)), max_size=6),
)
def test_no_server_opens_what_lies_outside_of_the_tree_of_all_readings(
    segments: list[str], separator: str, habits: list[str]
) -> None:
    path = "/srv/pub/" + separator.join(segments)
    found = readings(f"file://{path}")
    if not found or not all(reading.startswith("file:///srv/pub/") for reading in found):
        return
    for habit in ("decodes", *habits, "resolves"):
        path = SERVERS[habit](path)
    assert f"{path}/".startswith("/srv/pub/")


@given(st.text())
def test_readings_begin_with_the_plain_one(text: str) -> None:
    found = readings(text)
    assert not found or found[0] == plain(text)


@pytest.mark.parametrize(
    ("uri", "legal"),
    [
        ("file:///a b", True),
        ("memo:100%", True),
        ("x:%41%2f", True),
        ("x:", True),
        ("no uri", False),
        ("", False),
        ("x:a\nb", False),
        ("x:%00", False),
        ("x:%2500", False),
        ("x:%ff", False),
        (" x:a", False),
        ("x:" + "%25" * 70 + "41", True),
        ("x:%" + "25" * 70 + "41", False),
    ],
)
def test_what_cannot_be_judged_is_no_legal_uri(uri: str, legal: bool) -> None:
    assert is_legal(uri) is legal


def test_a_uri_that_is_read_in_many_ways_takes_no_long_time() -> None:
    began = time.perf_counter()
    readings("x:" + "%25" * 20_000 + "/..\\" * 20_000)
    assert time.perf_counter() - began < 2


def test_file_uris_have_one_head_however_they_are_written() -> None:
    assert {plain(f"{head}/a") for head in ("file:", "FILE://", "file://localhost", "file://LocalHost")} == {
        "file:///a"
    }


def test_dots_are_removed_from_paths_without_a_root_as_well() -> None:
    assert plain("memo:a/../b") == "memo:b"
    assert plain("memo:../a/.") == "memo:a/"


def test_a_delimiter_that_is_encoded_is_one_and_is_none() -> None:
    assert set(readings("x:a%2fb")) == {"x:a/b", "x:a%2Fb"}
    assert set(spellings("x:a%2fb")) == {"x:a/b", "x:a%2Fb"}
