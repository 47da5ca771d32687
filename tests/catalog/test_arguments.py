"""The twin of `mcproxy.catalog.arguments`: what is valid under the schema shown is valid upstream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import msgspec
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Principal
from mcproxy.catalog.arguments import ArgumentRules, UnsupportedSchema, overridden
from mcproxy.protocol.jsonrpc import Params, raw
from mcproxy.settings.upstreams.upstream import ArgumentOverride

ALICE = Principal("alice", attributes=(("team", "red"), ("path", "../etc")))
NAMES = ("path", "verbose", "q", "limit", "deep")

TYPES: Mapping[str, tuple[dict[str, Any], st.SearchStrategy[Any]]] = {
    "string": ({"type": "string", "maxLength": 3}, st.text(max_size=5)),
    "matched": ({"type": "string", "pattern": "^a+$"}, st.sampled_from(["a", "aa", "ab", ""])),
    "integer": ({"type": "integer", "minimum": 0, "maximum": 5}, st.integers(-2, 9)),
    "array": ({"type": "array", "items": {"type": "string"}, "minItems": 1}, st.lists(st.sampled_from(["a", 1]))),
    "combined": (
        {"anyOf": [{"type": "null"}, {"allOf": [{"minimum": 2}, {"multipleOf": 2}]}]},
        st.none() | st.integers(0, 9),
    ),
    "boolean": ({"type": "boolean"}, st.booleans()),
    "enum": ({"enum": ["a", 1, True]}, st.sampled_from(["a", 1, True, "b", False])),
    "node": (
        {"$ref": "#/$defs/node"},
        st.recursive(st.just({}), lambda inner: st.fixed_dictionaries({}, optional={"path": inner}), max_leaves=3),
    ),
    "anything": ({}, st.none() | st.integers() | st.text(max_size=2)),
}
DEFS = {"node": {"type": "object", "properties": {"path": {"$ref": "#/$defs/node"}}, "required": []}}


def valid(schema: Any, value: object) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@st.composite
def schemas(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, str]]:
    """A tool's schema, and the kind of each of its arguments."""
    kinds = {name: draw(st.sampled_from(sorted(TYPES))) for name in draw(st.sets(st.sampled_from(NAMES), min_size=1))}
    names = sorted(kinds)
    schema: dict[str, Any] = {
        "type": draw(st.sampled_from(["object", ["object", "null"]])),
        "properties": {name: TYPES[kind][0] for name, kind in kinds.items()},
    }
    if draw(st.booleans()):
        schema["required"] = draw(st.lists(st.sampled_from(names), unique=True))
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.sampled_from([True, False, {"type": "string"}]))
    if draw(st.booleans()):
        others = st.lists(st.sampled_from(names), unique=True, max_size=2)
        schema["dependentRequired"] = draw(st.dictionaries(st.sampled_from(names), others, max_size=3))
    if draw(st.booleans()):
        return {"$ref": "#/$defs/root", "$defs": {**DEFS, "root": schema}}, kinds
    return {**schema, "$defs": DEFS}, kinds


@st.composite
def overrides(draw: st.DrawFn, kinds: Mapping[str, str]) -> dict[str, ArgumentOverride]:
    found: dict[str, ArgumentOverride] = {}
    for name in draw(st.sets(st.sampled_from(sorted(kinds)), min_size=1)):
        value = draw(TYPES[kinds[name]][1])
        found[name] = ArgumentOverride.model_validate(
            draw(
                st.sampled_from(
                    [
                        {"value": value},
                        {"hide": True, "default": value},
                        {"hide": True},
                        {"rename": "other"},
                        {"rename": "path"},
                        {"description": "Another."},
                    ]
                )
            )
        )
    return found


@given(st.data())
def test_arguments_that_are_valid_under_the_schema_shown_are_valid_upstream(data: st.DataObject) -> None:
    schema, kinds = data.draw(schemas())
    chosen = data.draw(overrides(kinds))
    try:
        shown, rules = overridden({"inputSchema": raw(schema)}, chosen)
    except UnsupportedSchema as why:
        event(str(why)[:30])
        return
    shown_schema = msgspec.json.decode(shown)
    jsonschema.Draft202012Validator.check_schema(shown_schema)
    values = {name: TYPES[kinds[own]][1] for name, own in rules.own_names.items()}
    arguments = data.draw(st.fixed_dictionaries({}, optional=values))
    assume(valid(shown_schema, arguments))
    event("sent")
    assert valid(schema, final(rules, arguments))


@given(st.data())
def test_an_argument_that_the_schema_does_not_show_is_refused(data: st.DataObject) -> None:
    schema, kinds = data.draw(schemas())
    try:
        shown, rules = overridden({"inputSchema": raw(schema)}, data.draw(overrides(kinds)))
    except UnsupportedSchema:
        return
    for name in {*NAMES, "other", "more"} - rules.own_names.keys():
        assert not valid(msgspec.json.decode(shown), {name: 1})
        with pytest.raises(McpError, match="is not one that callers may send"):
            final(rules, {name: 1})


def final(rules: ArgumentRules, arguments: Mapping[str, object], principal: Principal = ALICE) -> dict[str, Any]:
    params: Params = {name: raw(value) for name, value in arguments.items()}
    found: dict[str, Any] = msgspec.json.decode(raw(rules.final(params, principal)))
    return found


def made(schema: object, **chosen: dict[str, object]) -> tuple[Any, ArgumentRules]:
    settings = {name: ArgumentOverride.model_validate(override) for name, override in chosen.items()}
    shown, rules = overridden({"inputSchema": raw(schema)}, settings)
    return msgspec.json.decode(shown), rules


OBJECT = {"type": "object", "properties": {"path": {"type": "string"}, "q": {"type": "string"}}, "required": ["path"]}


def test_the_schema_shown_has_what_callers_may_send_and_no_more() -> None:
    shown, rules = made(OBJECT, path={"value": "/srv"}, q={"rename": "query", "description": "What to look for."})
    assert shown == {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "What to look for."}},
        "additionalProperties": False,
    }
    assert final(rules, {"query": "x"}) == {"q": "x", "path": "/srv"}


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("${caller.name}", "alice"),
        ("/srv/${caller.name}/x", "/srv/alice/x"),
        ("${caller.attributes.team}", "red"),
        ("${caller.attributes.path}", "../etc"),
        ({"a": ["${caller.name}", 1]}, {"a": ["alice", 1]}),
        (False, False),
        (0, 0),
        ("", ""),
    ],
)
def test_a_value_may_be_of_the_caller(value: object, filled: object) -> None:
    _, rules = made({"type": "object", "properties": {"a": {}}}, a={"value": value})
    assert final(rules, {}) == {"a": filled}


@pytest.mark.parametrize(
    "value", ["/srv/${caller.attributes.path}", "${caller.attributes.none}", "-${caller.attributes.path}"]
)
def test_a_value_that_the_caller_does_not_have_or_that_climbs_out_of_a_path_refuses_the_call(value: str) -> None:
    _, rules = made({"type": "object", "properties": {"a": {}}}, a={"value": value})
    with pytest.raises(McpError) as refused:
        final(rules, {})
    assert refused.value.reason is Reason.DENIED
    assert "../etc" not in refused.value.message


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a\\b", "-rf", "", "a b", "a\n", "ä"])
def test_names_that_paths_or_shells_would_read_are_not_put_into_a_text(name: str) -> None:
    _, rules = made({"type": "object", "properties": {"a": {}}}, a={"value": "/srv/${caller.name}"})
    with pytest.raises(McpError):
        final(rules, {}, Principal(name))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"enum": ["bob"]}, "is not one of the values that are allowed"),
        ({"pattern": "^[0-9]+$"}, "does not match '^[0-9]+$'"),
        ({"$ref": "#/$defs/short"}, "has more than 3 characters"),
    ],
)
def test_a_value_of_the_caller_that_the_argument_does_not_take_refuses_the_call(schema: object, why: str) -> None:
    root = {"type": "object", "properties": {"a": schema}, "$defs": {"short": {"maxLength": 3}}}
    _, rules = made(root, a={"value": "${caller.name}"})
    with pytest.raises(McpError) as refused:
        final(rules, {})
    assert refused.value.reason is Reason.DENIED
    assert refused.value.message.endswith(f"into an argument that does not take yours, which {why}")
    assert "alice" not in refused.value.message


def test_a_value_of_the_caller_that_the_argument_takes_is_sent() -> None:
    _, rules = made({"properties": {"a": {"enum": ["alice"]}}}, a={"value": "${caller.name}"})
    assert final(rules, {}) == {"a": "alice"}


PROPERTIES: dict[str, Any] = {"a": {"type": "string"}, "b": {"type": "string"}}


@pytest.mark.parametrize(
    ("schema", "override", "why"),
    [
        (True, {"value": "x"}, "its inputSchema is no object"),
        ({"type": "string"}, {"value": "x"}, "its inputSchema is not of an object"),
        ({"type": ["array", "null"]}, {"value": "x"}, "its inputSchema is not of an object"),
        ({}, {"value": "x"}, "its inputSchema has no argument 'a'"),
        ({"properties": PROPERTIES, "allOf": [{"required": ["a"]}]}, {"value": "x"}, "uses 'allOf'"),
        ({"properties": PROPERTIES, "anyOf": []}, {"rename": "c"}, "uses 'anyOf'"),
        ({"properties": PROPERTIES, "if": {}, "then": {}}, {"rename": "c"}, "uses 'if'"),
        ({"properties": PROPERTIES, "patternProperties": {}}, {"rename": "c"}, "uses 'patternProperties'"),
        ({"properties": PROPERTIES, "minProperties": 1}, {"value": "x"}, "uses 'minProperties'"),
        ({"properties": PROPERTIES, "dependentSchemas": {}}, {"value": "x"}, "uses 'dependentSchemas'"),
        ({"properties": {**PROPERTIES, "c": {"$ref": "#/properties/a"}}}, {"rename": "x"}, "reference that is not to"),
        ({"properties": {**PROPERTIES, "c": {"$ref": "#"}}}, {"rename": "x"}, "reference that is not to"),
        ({"properties": {**PROPERTIES, "default": {"$ref": "#/properties/a"}}}, {"rename": "x"}, "not to one of its"),
        ({"properties": PROPERTIES, "$ref": None}, {"rename": "x"}, "reference that is not to one of its .*: None"),
        ({"properties": {**PROPERTIES, "c": {"$id": "x"}}}, {"rename": "x"}, "has an \\$id within it"),
        ({"$ref": "#/$defs/a"}, {"value": "x"}, "which it does not have"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, {"value": "x"}, "refers to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"required": []}}, "required": []}, {"value": "x"}, "beside a reference"),
        ({"properties": PROPERTIES, "required": [{}]}, {"value": "x"}, "a malformed 'required'"),
        ({"properties": [], "required": []}, {"value": "x"}, "a malformed 'properties'"),
        ({"properties": PROPERTIES, "dependentRequired": {"a": "b"}}, {"value": "x"}, "malformed 'dependentRequired'"),
        ({"properties": PROPERTIES, "required": ["a"]}, {"hide": True}, "'a' is hidden and required"),
        ({"properties": PROPERTIES, "required": ["z"]}, {"value": "x"}, "requires 'z' and does not describe it"),
        ({"properties": PROPERTIES, "dependentRequired": {"b": ["a"]}}, {"hide": True}, "'a' is hidden, and 'b' needs"),
        ({"properties": PROPERTIES}, {"rename": "b"}, "two of its arguments would be called 'b'"),
        ({"properties": PROPERTIES}, {"value": 1}, "the value of 'a', which is not of type string"),
        (
            {"properties": {"a": {"enum": ["x"]}}},
            {"value": "y"},
            "the value of 'a', which is not one of the values that are allowed",
        ),
        (
            {"properties": {"a": {"const": 1}}},
            {"value": True},
            "the value of 'a', which is not the value that is allowed",
        ),
        ({"properties": {"a": {"pattern": "^a$"}}}, {"value": "b"}, "the value of 'a', which does not match"),
        ({"properties": {"a": {"maximum": 3}}}, {"value": 4}, "the value of 'a', which is more than 3"),
        ({"properties": {"a": {"minimum": 3}}}, {"hide": True, "default": 2}, "the value of 'a', which is less than 3"),
        ({"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"const": 1}}}, {"value": 2}, "is not the value"),
        ({"properties": {"a": {"anyOf": [{"type": "null"}]}}}, {"value": "x"}, "is of no kind that is allowed"),
        ({"properties": {"a": {"allOf": [{"minLength": 2}]}}}, {"value": "x"}, "has fewer than 2 characters"),
        ({"properties": {"a": {"items": {"type": "string"}}}}, {"value": [1]}, "item 0 is not of type string"),
        (
            {"properties": {"a": {"pattern": "(?=a)"}}},
            {"value": "a"},
            "whether the value of 'a' is valid cannot be determined",
        ),
        (
            {"properties": {"a": {"type": "integer"}}},
            {"value": "${caller.name}"},
            "of 'a', which is not of type integer",
        ),
        ({"properties": {"a": False}}, {"value": "${caller.name}"}, "the value of 'a', which is not allowed"),
        ({"properties": {"a": {"pattern": "(?=a)"}}}, {"value": "${caller.name}"}, "cannot be determined"),
        ({"properties": {"a": False}}, {"value": True}, "the value of 'a', which is not allowed"),
    ],
)
def test_a_schema_under_which_an_override_cannot_be_kept_is_refused_with_the_reason(
    schema: object, override: dict[str, object], why: str
) -> None:
    with pytest.raises(UnsupportedSchema, match=why):
        made(schema, a=override)


def test_an_argument_that_a_fixed_one_needs_is_required() -> None:
    schema = {"properties": PROPERTIES, "dependentRequired": {"a": ["b"]}}
    shown, _ = made(schema, a={"value": "x"}, b={"rename": "c"})
    assert shown["required"] == ["c"]


def test_arguments_may_be_called_as_keywords_are() -> None:
    shown, _ = made({"properties": {**PROPERTIES, "$ref": {"type": "string"}, "$id": {}}}, a={"rename": "c"})
    assert list(shown["properties"]) == ["c", "b", "$ref", "$id"]


def test_a_tool_without_a_schema_that_can_be_read_is_refused() -> None:
    with pytest.raises(UnsupportedSchema, match="no inputSchema that can be read"):
        overridden({}, {})
