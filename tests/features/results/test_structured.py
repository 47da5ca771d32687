"""The twin of `mcproxy.features.results.structured`: what was valid stays valid, and the room there is is used."""

from __future__ import annotations

from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import msgspec
import pytest
from hypothesis import assume, event, example, given
from hypothesis import strategies as st
from msgspec import Raw

from mcproxy.concurrency.turns import at_once
from mcproxy.features.results.structured import MAX_LEAST, MAX_VALUES, STEP, shortened_arrays
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
    cut = shortened(raw(value), raw(schema), room)
    event("whole" if cut is None else "cut")
    if cut is not None:
        assert len(cut) <= room
        assert valid(schema, msgspec.json.decode(cut))


@given(VALUES, st.integers(0, 200))
def test_without_a_schema_arrays_are_cut_to_their_start(value: dict[str, Any], room: int) -> None:
    cut = shortened(raw(value), None, room)
    if cut is not None:
        shown = msgspec.json.decode(cut)
        assert shown["list"] == value["list"][: len(shown["list"])]
        assert shown.get("n") == value.get("n")


def test_what_stands_in_the_items_that_are_left_is_byte_for_byte_as_it_came() -> None:
    value = msgspec.Raw(b'{"a":[{"x":1.0},{"x":1e2},"\\u00e9\\/",1234567890123456789012345678901234567890,4,5,6]}')
    assert bytes(shortened(value, None, 50) or b"") == b'{"a":[{"x":1.0},{"x":1e2},"\\u00e9\\/"]}'


@pytest.mark.parametrize("schema", [b"{", b"1", b"[]", b'{"$ref": "#/$defs/none"}', b'{"$ref": "#"}', b'{"$ref": 1}'])
def test_a_schema_that_is_not_understood_leaves_the_value_whole(schema: bytes) -> None:
    assert shortened(raw([1, 2, 3]), msgspec.Raw(schema), 3) is None


def shortened(value: Raw, schema: Raw | None, room: int) -> Raw | None:
    return at_once(shortened_arrays(value, schema, room))


INNER = {"$id": "urn:inner", "type": "object", "properties": {"list": {"$ref": "#/$defs/list"}}}
OF_INNER = {"$defs": {"list": {"type": "array", "minItems": 3}}}


@pytest.mark.parametrize(
    ("schema", "is_cut"),
    [
        ({"properties": {"in": {**INNER, **OF_INNER}}, "$defs": {"list": {"type": "array"}}}, False),
        ({"properties": {"in": {"$ref": "#/$defs/in"}}, "$defs": {"in": {**INNER, **OF_INNER}, "list": {}}}, False),
        ({"properties": {"in": {"properties": {"list": {"type": "array"}}}, "$id": {"type": "string"}}}, True),
        ({"$id": "urn:outer", "properties": {"in": {"properties": {"list": {"type": "array"}}}}}, True),
    ],
    ids=["within", "in a definition", "a property of that name", "of the whole"],
)
def test_r81_a_schema_with_an_id_within_it_leaves_the_value_whole(schema: dict[str, Any], is_cut: bool) -> None:
    value = {"in": {"list": list(range(100))}}
    cut = shortened(raw(value), raw(schema), 40)
    assert (cut is not None) is is_cut
    if cut is not None:
        assert valid(schema, msgspec.json.decode(cut))


def test_r81_rows_that_are_larger_than_the_room_are_cut_themselves_and_the_room_is_used() -> None:
    rows = [{"id": number, "cells": [f"cell {number}" for number in range(2000)]} for number in range(40)]
    cut = shortened(raw({"rows": rows}), None, 8192)
    assert cut is not None
    assert 8192 - 20 <= len(cut) <= 8192
    shown = msgspec.json.decode(cut)["rows"]
    assert len(shown) == 1
    assert shown[0]["id"] == 0
    assert shown[0]["cells"] == rows[0]["cells"][: len(shown[0]["cells"])]  # type: ignore[index]


def test_of_rows_of_which_many_fit_none_is_cut() -> None:
    rows = [{"id": number, "tags": ["a", "b"]} for number in range(1000)]
    cut = shortened(raw({"rows": rows}), None, 8192)
    assert cut is not None
    assert len(cut) > 8192 - 40
    shown = msgspec.json.decode(cut)["rows"]
    assert shown == rows[: len(shown)]


def test_arrays_share_the_room_and_what_a_short_one_leaves_is_the_others() -> None:
    value = {"short": [1, 2], "long": ["x"] * 5000, "longer": ["x"] * 9000, "text": "t" * 100}
    cut = shortened(raw(value), None, 4096)
    assert cut is not None
    assert 4096 - 8 <= len(cut) <= 4096
    shown = msgspec.json.decode(cut)
    assert (shown["short"], shown["text"]) == ([1, 2], "t" * 100)
    assert abs(len(shown["long"]) - len(shown["longer"])) <= 4


def test_r81_items_that_must_stay_stay_and_are_cut_themselves_where_there_is_no_room_for_them() -> None:
    item = {"type": "object", "properties": {"cells": {"type": "array", "minItems": 1}}, "required": ["cells"]}
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": item, "minItems": 3}}}
    rows = [{"cells": ["é" * 5] * 500} for _ in range(9)]
    cut = shortened(raw({"rows": rows}), raw(schema), 1000)
    assert cut is not None
    assert valid(schema, msgspec.json.decode(cut))
    assert 900 < len(cut) <= 1000
    assert shortened(raw({"rows": rows}), raw(schema), 40) is None


@pytest.mark.parametrize("least", [MAX_LEAST, MAX_LEAST + 1])
def test_an_array_that_must_have_very_many_items_is_not_cut(least: int) -> None:
    schema = {"type": "object", "properties": {"rows": {"type": "array", "minItems": least}}}
    cut = shortened(raw({"rows": [1] * 1000}), raw(schema), 500)
    assert (cut is None) is (least > MAX_LEAST)


json_values = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=60,
)


def is_start(shown: Any, whole: Any) -> bool:
    """Whether `shown` is `whole` with arrays cut to their start."""
    match whole:
        case dict():
            return shown.keys() == whole.keys() and all(is_start(shown[key], whole[key]) for key in whole)
        case list():
            return len(shown) <= len(whole) and all(map(is_start, shown, whole))
        case _:
            return bool(shown == whole)


@given(st.dictionaries(st.text(max_size=3), json_values, max_size=5), st.integers(0, 300))
@example({'\b\f\n\u2028"\\/': [[], [1, [2, 3, 4, 5]]]}, 30)
def test_what_is_shown_is_the_value_with_arrays_cut_to_their_start(value: dict[str, Any], room: int) -> None:
    cut = shortened(raw(value), None, room)
    event("whole" if cut is None else "cut")
    if cut is not None:
        assert len(cut) <= room
        assert is_start(msgspec.json.decode(cut), value)


def test_keys_may_be_spelt_in_any_way_and_come_twice() -> None:
    value = Raw(b'{"\\u0061\\/\\u0008":[1,2,3,4,5,6],"b":[1,2,3],"b":["x",2,3,4,5,6]}')
    cut = shortened(value, None, 36)
    assert cut is not None
    assert len(cut) <= 36
    assert is_start(msgspec.json.decode(cut), {"a/\b": [1, 2, 3, 4, 5, 6], "b": ["x", 2, 3, 4, 5, 6]})


def test_items_that_nest_very_deep_are_left_out() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    cut = shortened(Raw(b'{"a":[1,2,%b,%b]}' % (deep, b"1," * 9000 + b"1")), None, 15_000)
    assert cut is None or is_start(msgspec.json.decode(cut), {"a": [1, 2]})


def test_r78_nothing_is_cut_of_a_value_with_more_values_than_are_looked_at() -> None:
    wide = {f"a{one}": {f"b{two}": [1, 2] for two in range(1000)} for one in range(MAX_VALUES // 1000)}
    assert shortened(raw(wide), None, len(raw(wide)) - 10) is None
    del wide["a0"]
    assert shortened(raw(wide), None, len(raw(wide)) - 10) is not None


def test_r78_others_have_their_turn_while_a_large_value_is_read() -> None:
    arrays = {f"a{number}": [1] * 90_000 for number in range(40)}
    value = raw(arrays)
    assert len(list(shortened_arrays(value, None, 32_768))) >= 2 * len(value) // STEP
    rows = raw({"rows": [arrays]})
    assert len(list(shortened_arrays(rows, None, 32_768))) >= 3 * len(value) // STEP
