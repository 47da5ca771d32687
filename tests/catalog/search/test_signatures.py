"""Tools in one line: parameters with their types, required ones first, and what a server wrote, kept short."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcproxy.catalog.search.signatures import MAX_PARAMETERS, MAX_SUMMARY, MAX_TYPE, first_words, signature, summary
from mcproxy.protocol.jsonrpc import raw


def line(name: str = "t", description: object = None, **schema: Any) -> str:
    return signature(name, raw({"name": name, "description": description, "inputSchema": schema}))


def test_required_parameters_come_first_and_others_have_a_mark() -> None:
    properties = {"limit": {"type": "integer"}, "repo": {"type": "string"}}
    assert line("git__log", "Shows commits.", properties=properties, required=["repo"]) == (
        "git__log(repo: str, limit?: int) - Shows commits."
    )


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "number"}, "float"),
        ({"type": "boolean"}, "bool"),
        ({"type": "object"}, "object"),
        ({"type": "array"}, "list"),
        ({"type": "array", "items": {"type": "string"}}, "list[str]"),
        ({"type": ["string", "null"]}, "str|null"),
        ({"enum": ["asc", "desc"]}, '"asc"|"desc"'),
        ({"type": "string", "enum": ["x" * 100]}, "str"),
        ({"type": "unheard of"}, "any"),
        ({}, "any"),
        (True, "any"),
    ],
)
def test_types_are_those_that_models_know_best(schema: object, shown: str) -> None:
    assert line(properties={"p": schema}, required=["p"]) == f"t(p: {shown})"


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "str|null"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "str|int"),
        ({"anyOf": [{"type": "string"}, {}]}, "any"),
        ({"anyOf": [{"type": "string"}, {"type": "string", "format": "uri"}]}, "str"),
        ({"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}], "default": None}, '"red"|"green"|null'),
        ({"$ref": "#/$defs/Point"}, "object"),
        ({"$ref": "#/definitions/Old"}, "bool"),
        ({"$ref": "#/$defs/Missing"}, "any"),
        ({"$ref": "https://example.com/schema"}, "any"),
        ({"$ref": "#/$defs/Self"}, "any"),
        ({"type": "array", "items": {"$ref": "#/$defs/Point"}}, "list[object]"),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "list[str|null]"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, "list[list[float]]"),
        ({"type": ["array", "null"], "items": {"type": "integer"}}, "list[int]|null"),
        ({"type": "array", "items": {"$ref": "#/$defs/Tree"}}, "list[list[list]]"),
        ({"const": "only"}, '"only"'),
        ({"type": "string", "enum": [{"a": 1}]}, "str"),
        ({"anyOf": [{"type": "string"}] * 100}, "any"),
        ({"type": ["string", {"a": 1}, ["x"], 5]}, "any"),
        ({"type": {"a": 1}}, "any"),
    ],
)
def test_references_alternatives_and_items_are_followed(schema: object, shown: str) -> None:
    defs = {
        "Color": {"enum": ["red", "green"]},
        "Point": {"type": "object", "properties": {}},
        "Self": {"$ref": "#/$defs/Self"},
        "Tree": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
    }
    known: dict[str, Any] = {"$defs": defs, "definitions": {"Old": {"type": "boolean"}}}
    assert line(properties={"p": schema}, required=["p"], **known) == f"t(p: {shown})"


def test_a_type_is_short_whatever_it_is_made_of() -> None:
    defs = {f"D{level}": {"anyOf": [{"$ref": f"#/$defs/D{level + 1}"}] * 5} for level in range(9)}
    wide: dict[str, Any] = {"$defs": defs}
    many = {"anyOf": [{"enum": [f"a choice of thirty chars {letter}"]} for letter in "abcde"]}
    for schema in ({"$ref": "#/$defs/D0"}, many):
        shown = line(properties={"p": schema}, required=["p"], **wide)
        assert len(shown) <= len("t(p: )") + MAX_TYPE


def test_of_many_parameters_the_first_are_named() -> None:
    shown = line(properties={f"p{number}": {} for number in range(MAX_PARAMETERS + 1)})
    assert shown.count("any") == MAX_PARAMETERS
    assert shown.endswith(", ...)")


def test_a_title_stands_for_a_description_that_is_not_there() -> None:
    assert signature("t", raw({"title": "A title"})) == "t() - A title"


def test_a_long_description_ends_with_a_sentence_or_a_word() -> None:
    assert line(
        description="One sentence that says a lot. " + "and more " * 50
    ) == "t() - One sentence that says a lot."[:0] + (
        "t() - " + first_words("One sentence that says a lot. " + "and more " * 50, MAX_SUMMARY)
    )
    assert first_words("A sentence of forty characters in a text. " + "word " * 50, 60) == (
        "A sentence of forty characters in a text."
    )
    assert first_words("word " * 50, 12) == "word word ..."


@pytest.mark.parametrize(
    "entry", [b"[]", b'{"name": 5}', b'{"inputSchema": 5}', b'{"inputSchema": {"properties": []}}']
)
def test_a_malformed_entry_is_a_name_without_more(entry: bytes) -> None:
    assert signature("t", Raw(entry)) == "t()"


def test_what_is_malformed_counts_as_absent() -> None:
    tool = summary(raw({"title": 5, "description": [], "inputSchema": {"properties": {"a": 1}, "required": ["a", 5]}}))
    assert (tool.title, tool.description, tool.required) == ("", "", frozenset({"a"}))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("git.log/all-2", "git.log/all-2()"),
        ("größe", "größe()"),
        ("x\ny(a: str) - Reads. [call_read]", r'"x\ny(a: str) - Reads. [call_read]"()'),
        ("a b", '"a b"()'),
        ("x" * 10_000, "x" * 256 + "()"),
    ],
)
def test_a_name_passes_for_no_line_of_another_tool(name: str, shown: str) -> None:
    assert line(name) == shown


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text()))
def test_nothing_that_a_server_writes_leaves_its_line(name: str, description: str, properties: dict[str, str]) -> None:
    shown = line(name, description, properties=properties)
    assert len(shown.splitlines()) == 1
    assert all(char.isprintable() for char in shown)
