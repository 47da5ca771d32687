"""The depth of JSON: what is a bracket and what is text, and that measuring it is no work worth an attack."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.protocol.json.nesting import nests_deeper
from tests.depth import examples

TEXT = st.text(st.sampled_from('[]{}"\\a,:\u00e9'), max_size=8)
VALUES = st.recursive(
    st.none() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=40,
)


def depth_of(value: Any) -> int:
    match value:
        case list():
            return 1 + max(map(depth_of, value), default=0)
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case _:
            return 0


@pytest.mark.parametrize(
    ("data", "depth"),
    [
        (b"7", 0),
        (b"[]", 1),
        (b'{"a":{"b":[1,[2],{"c":[]}]}}', 5),
        (b'["[[[[", "]]", "\\"[[[\\\\"]', 1),
        (b'["","[","","","[[",""]', 1),
        (b"[" * 50 + b"]" * 50, 50),
        (b"[" * 100_000 + b"]" * 100_000, 100_000),
        (b'["' + b"[" * 200_000 + b'",[[]]]', 3),
        (b"[" + b'"[",[],' * 50_000 + b"[[]]]", 3),
    ],
)
def test_nesting_is_that_of_values_and_not_of_text(data: bytes, depth: int) -> None:
    assert not nests_deeper(data, depth)
    assert depth == 0 or nests_deeper(data, depth - 1)


@settings(max_examples=examples(500))
@given(VALUES, st.booleans())
def test_the_depth_is_the_one_that_a_parser_finds(value: Any, ascii_alone: bool) -> None:
    data, depth = json.dumps(value, ensure_ascii=ascii_alone).encode(), depth_of(value)
    assert not nests_deeper(data, depth)
    assert depth == 0 or nests_deeper(data, depth - 1)


DIFFICULT = {
    "brackets": b"[" + b"[]," * 1_000_000 + b"[]]",
    "brackets near the limit": b"[" * 199 + b"[]," * 1_000_000 + b"[]" + b"]" * 199,
    "strings": b"[" * 200 + b'"a",' * 1_000_000 + b"1" + b"]" * 200,
    "brackets in strings": b"[" + b'"[",' * 1_000_000 + b"1]",
    "escapes": b"[" * 200 + b'"' + b'\\\\\\"' * 1_000_000 + b'"' + b"]" * 200,
}


@pytest.mark.parametrize("kind", DIFFICULT)
def test_r78_measuring_the_depth_takes_less_than_an_addition_in_python_for_each_byte(kind: str) -> None:
    data = DIFFICULT[kind]

    def plain() -> None:
        total = 0
        for byte in data:
            total += byte

    def measured() -> None:
        assert not nests_deeper(data, 200)

    assert any(_time_of(measured) < _time_of(plain) for _ in range(5))


def _time_of(work: Callable[[], object]) -> int:
    began = time.thread_time_ns()
    work()
    return time.thread_time_ns() - began
