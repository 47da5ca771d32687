"""The twin of `mcproxy.protocol.json.repeated_members`: one member of a name, by whichever spelling, at any depth."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcproxy.protocol.json.repeated_members import RepeatedMember, distinct, repeats_member
from mcproxy.protocol.jsonrpc import raw

values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=10,
)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_a_value_with_each_member_once_repeats_none(value: object, ascii: bool, indent: int | None) -> None:
    assert not repeats_member(Raw(json.dumps(value, ensure_ascii=ascii, indent=indent).encode()))
    assert not repeats_member(raw(value))


def repeated(value: Any) -> bytes:
    """`value` with the first member of each object once more, at its end."""
    if isinstance(value, list):
        return b"[" + b",".join(map(repeated, value)) + b"]"
    if not isinstance(value, dict):
        return json.dumps(value).encode()
    members = [json.dumps(key).encode() + b": " + repeated(each) for key, each in value.items()]
    return b"{" + b",".join([*members, *members[:1]]) + b"}"


def has_member(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value)
    return isinstance(value, list) and any(map(has_member, value))


@given(values)
def test_a_member_that_comes_twice_is_found_at_any_depth(value: object) -> None:
    assert repeats_member(Raw(repeated(value))) is has_member(value)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"\\u0061":2}',
        b'{"a":1e5,"a":100000.0}',
        b'[1e400,{"a":' + b"1" * 5000 + b',"a":1}]',
        b'{"\\ud800":1,"a":1,"a":1}',
    ],
)
def test_other_spellings_hide_no_repetition(data: bytes) -> None:
    assert repeats_member(Raw(data))


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":"\\u0061","b":1e5}',
        b'{"a":1e400,"b":' + b"1" * 5000 + b"}",
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b'{"a":',
        b"",
    ],
)
def test_what_is_spelled_in_other_ways_or_is_no_json_repeats_nothing(data: bytes) -> None:
    assert not repeats_member(Raw(data))


def test_members_of_two_names_are_an_object() -> None:
    assert distinct([("a", 1), ("b", 2)]) == {"a": 1, "b": 2}
    with pytest.raises(RepeatedMember, match="a member comes twice in it"):
        distinct([("a", 1), ("a", 1)])
