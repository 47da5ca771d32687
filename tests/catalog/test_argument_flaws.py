"""What is plainly wrong with arguments: never anything of valid ones (a property, judged by another implementation)."""

from __future__ import annotations

from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcproxy.catalog.argument_flaws import MAX_FLAWS, flaws
from mcproxy.protocol.jsonrpc import first_level, raw

SCHEMA = {
    "type": "object",
    "properties": {
        "repo": {"type": "string"},
        "limit": {"type": "integer"},
        "any": {},
        "many": {"type": ["array", "null"]},
    },
    "required": ["repo"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"repo": "x"}, []),
        ({"repo": "x", "limit": 5, "any": {}, "many": None}, []),
        ({"repo": "x", "limit": 5.0}, []),
        ({}, ["'repo' is required"]),
        ({"repo": 5}, ["'repo' must be of type string"]),
        ({"repo": "x", "limit": 5.5}, ["'limit' must be of type integer"]),
        ({"repo": "x", "limit": True}, ["'limit' must be of type integer"]),
        ({"repo": "x", "limit": 10**400}, []),
        ({"repo": "x", "many": {}}, ["'many' must be of type array or null"]),
        ({"repo": "x", "rep\no": 1}, ["'rep o' is not a parameter"]),
    ],
)
def test_flaws_of_the_first_level_are_named(arguments: dict[str, object], found: list[str]) -> None:
    assert flaws(raw(SCHEMA), first_level(arguments)) == found


def test_no_more_flaws_are_told_than_a_model_reads() -> None:
    assert len(flaws(raw(SCHEMA), first_level({f"p{number}": 1 for number in range(100)}))) == MAX_FLAWS


def test_each_type_is_told_once() -> None:
    schema = {"properties": {"a": {"type": ["string", "null"] * 1000}}}
    assert flaws(raw(schema), first_level({"a": 1})) == ["'a' must be of type string or null"]


@pytest.mark.parametrize("schema", [b"[]", b"true", b"{", b'{"required": 5}', b'{"properties": []}'])
def test_a_schema_that_cannot_be_read_finds_nothing(schema: bytes) -> None:
    assert flaws(Raw(schema), first_level({"a": 1})) == []


values: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text(max_size=2) | st.just([]) | st.just({})
)
types = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])
schemas = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(
            st.sampled_from("abc"),
            st.fixed_dictionaries({}, optional={"type": types | st.lists(types, min_size=1, max_size=2, unique=True)}),
        ),
        "required": st.lists(st.sampled_from("abcd"), max_size=2, unique=True),
        "additionalProperties": st.booleans() | st.just({"type": "string"}),
        "patternProperties": st.just({"^d": {}}),
    },
)


@given(schemas, st.dictionaries(st.sampled_from("abcd"), values, max_size=3))
def test_valid_arguments_have_no_flaw(schema: dict[str, Any], arguments: dict[str, object]) -> None:
    if jsonschema.Draft202012Validator(schema).is_valid(arguments):
        assert flaws(raw(schema), first_level(arguments)) == []
