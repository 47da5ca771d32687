"""The twin of `mcproxy.gateway.results.shortening`: what was valid stays valid, and no character is cut in two."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import msgspec
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from mcproxy.gateway.results.shortening import boundary, head_and_tail, shares, shortened_arrays, texts, with_text
from mcproxy.protocol.jsonrpc import raw

ROW = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}, "required": ["tags"]}
LIST: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
KEYWORDS: list[dict[str, Any]] = [
    {}, {"minItems": 2}, {"uniqueItems": True}, {"contains": {"const": 7}}, {"maxItems": 900}, {"const": [1]},
    {"not": {"maxItems": 2}}, {"prefixItems": [{"type": "integer"}]}, {"enum": [[1, 2], []]}, {"default": []},
]  # fmt: skip


def valid(schema: Any, value: object) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    array = {**LIST, **draw(st.sampled_from(KEYWORDS))}
    rows = {"type": "array", "items": draw(st.sampled_from([ROW, {"$ref": "#/$defs/row"}, True]))}
    rows |= draw(st.sampled_from(KEYWORDS[:4]))
    optional = {"anyOf": [array, {"type": "null"}]}
    inner = draw(st.sampled_from([array, optional, {"oneOf": [array, {"maxItems": 0}]}, {"allOf": [array]}]))
    outer = {"type": "object", "properties": {"list": inner, "rows": rows, "n": {"type": "integer"}}}
    outer |= draw(st.sampled_from([{}, {"required": ["list"]}, {"minProperties": 1}, {"if": {}, "then": {}}]))
    return {**outer, "$defs": {"row": ROW}}


VALUES = st.fixed_dictionaries(
    {"list": st.lists(st.integers(0, 9), max_size=30)},
    optional={
        "rows": st.lists(st.fixed_dictionaries({"tags": st.lists(st.sampled_from(["a", "b" * 20]))}), max_size=8),
        "n": st.integers(),
    },
)


@given(schemas(), VALUES, st.integers(0, 200))
def test_r81_a_value_that_was_valid_is_valid_when_its_arrays_are_cut_and_fits(
    schema: dict[str, Any], value: dict[str, Any], room: int
) -> None:
    assume(valid(schema, value))
    cut = shortened_arrays(raw(value), raw(schema), room)
    event("whole" if cut is None else "cut")
    if cut is not None:
        assert len(cut) <= room
        assert valid(schema, msgspec.json.decode(cut))


@given(VALUES, st.integers(0, 200))
def test_without_a_schema_arrays_are_cut_to_their_start(value: dict[str, Any], room: int) -> None:
    cut = shortened_arrays(raw(value), None, room)
    if cut is not None:
        shown = msgspec.json.decode(cut)
        assert shown["list"] == value["list"][: len(shown["list"])]
        assert shown.get("n") == value.get("n")


def test_what_stands_in_the_items_that_are_left_is_byte_for_byte_as_it_came() -> None:
    value = msgspec.Raw(b'{"a": [ {"x": 1.0}, {"x":1e2}, 1234567890123456789012345678901234567890, 4, 5, 6]}')
    assert bytes(shortened_arrays(value, None, 50) or b"") == b'{"a":[{"x": 1.0},{"x":1e2}]}'


@pytest.mark.parametrize("schema", [b"{", b"1", b"[]", b'{"$ref": "#/$defs/none"}', b'{"$ref": "#"}', b'{"$ref": 1}'])
def test_a_schema_that_is_not_understood_leaves_the_value_whole(schema: bytes) -> None:
    assert shortened_arrays(raw([1, 2, 3]), msgspec.Raw(schema), 3) is None


@given(st.text(), st.integers(0, 40))
def test_texts_are_cut_between_characters_and_head_and_tail_are_as_long_as_they_may_be(text: str, room: int) -> None:
    data = text.encode(errors="replace")
    head, tail = head_and_tail(data, room)
    head.decode(), tail.decode()
    assert data.startswith(head)
    assert data.endswith(tail)
    assert len(head) + len(tail) <= max(room + 6, 0) or len(head) + len(tail) <= len(data)


@given(st.text(min_size=1), st.lists(st.integers(0, 60), min_size=1, max_size=5))
def test_pieces_that_follow_each_other_are_the_whole(text: str, cuts: list[int]) -> None:
    data = text.encode(errors="replace")
    places = [0, *sorted(cuts), len(data)]
    pieces = [data[boundary(data, a) : boundary(data, b)] for a, b in pairwise(places)]
    assert b"".join(pieces) == data
    for piece in pieces:
        piece.decode()


@given(st.lists(st.integers(0, 1000), max_size=6), st.integers(0, 2000))
def test_shares_are_what_is_needed_or_equal_parts_of_what_is_left(sizes: list[int], room: int) -> None:
    given = shares(sizes, room)
    assert sum(given) <= max(room, 0)
    assert all(share <= size for share, size in zip(given, sizes, strict=True))
    if sum(sizes) <= room:
        assert given == sizes


def test_texts_are_those_of_text_blocks_and_of_embedded_resources() -> None:
    blocks = [
        raw({"type": "text", "text": "one", "annotations": {"priority": 1}}),
        raw({"type": "image", "data": "AAAA", "mimeType": "image/png"}),
        raw({"type": "resource", "resource": {"uri": "file:///a", "text": "two"}}),
        raw({"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}}),
        raw("no block"),
    ]
    assert [(found.block, found.text) for found in texts(blocks)] == [(0, b"one"), (2, b"two")]
    assert msgspec.json.decode(with_text(blocks[0], "x")) == {
        "type": "text", "text": "x", "annotations": {"priority": 1},
    }  # fmt: skip
    assert msgspec.json.decode(with_text(blocks[2], "x"))["resource"] == {"uri": "file:///a", "text": "x"}
