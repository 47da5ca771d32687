"""The twin of `mcproxy.catalog.views.entry_shapes`, held against the official types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp_types import methods
from msgspec import Raw

from mcproxy.catalog.views.entry_shapes import ENTRIES, HANDSHAKE_TOOLS, MAX_DIGITS, MAX_FLAW, EntryRule
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from tests.fakes.upstream import resource, tool

Json = dict[str, Any]

ICON: Final[Json] = {"src": "a:b", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"}
FULL: Final[Mapping[Kind, Json]] = {
    Kind.TOOLS: tool(
        "t",
        title="T",
        description="d",
        icons=[ICON],
        annotations={"title": "T", "readOnlyHint": True, "openWorldHint": False},
        outputSchema={"type": "object", "properties": {"x": {}}, "required": ["x"]},
        execution={"taskSupport": "optional"},
        _meta={"ui": {"resourceUri": "ui://x", "visibility": ["app"]}},
    )
    | {"inputSchema": {"type": "object", "$schema": "x", "properties": {"a": {"default": None}}, "required": ["a"]}},
    Kind.PROMPTS: {
        "name": "p",
        "title": "P",
        "icons": [ICON],
        "arguments": [{"name": "a", "title": "A", "description": "d", "required": True}],
        "_meta": {"k": None},
    },
    Kind.RESOURCES: resource(
        "a:b", size=12, mimeType="text/plain", annotations={"audience": ["user"], "priority": 0.5, "lastModified": "x"}
    ),
    Kind.TEMPLATES: {"uriTemplate": "a:{b}", "name": "n", "mimeType": "x/y", "annotations": {"audience": []}},
}
"""Entries with most of the members that the protocol knows."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
odd_values: st.SearchStrategy[object] = json_values | st.sampled_from(
    ["object", "array", "light", "user", "required", "a:b", [], {}, [None], [{}]]
)


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths to all members and items of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, each in inner for found in ((*path, key), *places(each, (*path, key)))]


def with_value(whole: Any, path: tuple[str | int, ...], value: object) -> Any:
    """`whole` with another value at `path`; with Ellipsis for it, without what is there."""
    key, rest = path[0], path[1:]
    items = dict(whole) if isinstance(whole, dict) else dict(enumerate(whole))
    if rest:
        items[key] = with_value(items[key], rest, value)
    elif value is ...:
        del items[key]
    else:
        items[key] = value
    return items if isinstance(whole, dict) else list(items.values())


@st.composite
def altered(draw: st.DrawFn, kind: Kind) -> Json:
    """A full entry of which some members are others, or missing."""
    entry: Json = FULL[kind]
    for _ in range(draw(st.integers(1, 3))):
        if found := places(entry):
            entry = with_value(entry, draw(st.sampled_from(found)), draw(odd_values | st.just(...)))
    return entry


cases = st.sampled_from(list(FULL)).flatmap(lambda kind: st.tuples(st.just(kind), altered(kind)))


def parse(kind: Kind, version: str, entry: object) -> None:
    """Raises where the official types refuse a list with this entry."""
    hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if version == LATEST else {}
    methods.parse_server_result(kind.list_method, version, {kind.member: [entry], **hints})


def rules(kind: Kind) -> dict[str, EntryRule]:
    return {LATEST: ENTRIES[kind], LATEST_HANDSHAKE: HANDSHAKE_TOOLS if kind is Kind.TOOLS else ENTRIES[kind]}


@given(cases)
@example((Kind.RESOURCES, resource("a:b", size=1e30)))
@example((Kind.TOOLS, tool("t", outputSchema={"$schema": 1})))
def test_an_entry_that_passes_is_one_that_the_official_types_read(case: tuple[Kind, Json]) -> None:
    kind, entry = case
    for version, rule in rules(kind).items():
        shown, flaw = rule.checked(raw(entry))
        if flaw is None:
            parse(kind, version, json.loads(bytes(shown)))


@pytest.mark.parametrize("kind", FULL)
def test_a_well_formed_entry_is_the_very_same(kind: Kind) -> None:
    entry = Raw(json.dumps(FULL[kind], indent=1).encode())
    for version, rule in rules(kind).items():
        assert rule.checked(entry) == (entry, None)
        assert rule.checked(entry)[0] is entry
        parse(kind, version, FULL[kind])


@pytest.mark.parametrize(
    "entry",
    [
        tool("t", inputSchema=7),
        tool("t", inputSchema={"type": None}),
        tool("t", inputSchema={"type": ["object"]}),
        tool("t", inputSchema={"type": "array"}),
        tool("t", inputSchema={"type": "object", "required": [1]}),
        tool("t", title=1),
        tool("t", description=[]),
        tool("t", annotations="none"),
        tool("t", annotations={"readOnlyHint": "yes"}),
        tool("t", icons={}),
        tool("t", icons=[{}]),
        tool("t", icons=["a:b"]),
        tool("t", icons=[{"src": "a:b", "sizes": "any"}]),
        tool("t", _meta=[]),
        tool("t", outputSchema="x"),
        tool("t", execution=1),
        tool("t", execution={"taskSupport": "maybe"}),
    ],
)
def test_tools_that_no_client_may_be_sent(entry: Json) -> None:
    for rule in rules(Kind.TOOLS).values():
        assert rule.checked(raw(entry))[1] is not None


@pytest.mark.parametrize("schema", [{"type": "array"}, {}, {"type": "object", "properties": []}])
def test_output_schemas_are_of_objects_in_the_handshake_era_alone(schema: object) -> None:
    entry = raw(tool("t", outputSchema=schema))
    assert ENTRIES[Kind.TOOLS].checked(entry) == (entry, None)
    assert HANDSHAKE_TOOLS.checked(entry)[1] is not None


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        (Kind.PROMPTS, {"name": "p", "arguments": {}}),
        (Kind.PROMPTS, {"name": "p", "arguments": [{"title": "no name"}]}),
        (Kind.PROMPTS, {"name": "p", "arguments": [{"name": "a", "required": "yes"}]}),
        (Kind.RESOURCES, {"uri": "a:b"}),
        (Kind.RESOURCES, resource("no-scheme")),
        (Kind.RESOURCES, resource("a:b", size=1.5)),
        (Kind.RESOURCES, resource("a:b", annotations={"priority": 2})),
        (Kind.RESOURCES, resource("a:b", annotations={"audience": ["all"]})),
        (Kind.TEMPLATES, {"uriTemplate": "a:{b}", "name": 1}),
    ],
)
def test_other_entries_that_no_client_may_be_sent(kind: Kind, entry: Json) -> None:
    assert ENTRIES[kind].checked(raw(entry))[1] is not None


def test_optional_members_that_are_null_are_left_out_and_all_else_stays() -> None:
    nulls = tool("t", title=None, annotations={"title": None, "readOnlyHint": True}, icons=[ICON | {"theme": None}])
    entry = raw(nulls | {"_meta": {"x": None}, "future": None, "execution": None})
    shown, flaw = HANDSHAKE_TOOLS.checked(entry)
    left = tool("t", annotations={"readOnlyHint": True}, icons=[{key: ICON[key] for key in ICON if key != "theme"}])
    assert (json.loads(bytes(shown)), flaw) == (left | {"_meta": {"x": None}, "future": None}, None)


@pytest.mark.parametrize("schema", [{}, {"properties": {"a": {}}, "required": ["a"]}])
def test_a_schema_of_arguments_that_does_not_say_so_is_one_of_objects(schema: Json) -> None:
    entry = raw(tool("t", title=None, inputSchema=schema))
    for rule in rules(Kind.TOOLS).values():
        shown, flaw = rule.checked(entry)
        assert (json.loads(bytes(shown)), flaw) == (tool("t", inputSchema=schema | {"type": "object"}), None)


def test_schemas_of_properties_are_objects_for_handshake_clients() -> None:
    """The official TypeScript SDK 1.x refuses a whole list for one that is a boolean."""
    properties = b'{"any": true, "none" :false,"more":{ "type":"string"},"tree":{"properties":{"x":true}}}'
    entry = Raw(
        b'{"name":"t","inputSchema":{"type":"object","properties":%b,"additionalProperties":false}}' % properties
    )
    assert ENTRIES[Kind.TOOLS].checked(entry) == (entry, None)
    shown, flaw = HANDSHAKE_TOOLS.checked(entry)
    as_objects = b'{"any":{},"none":{"not":{}},"more":{ "type":"string"},"tree":{"properties":{"x":true}}}'
    assert flaw is None
    assert bytes(shown) == bytes(entry).replace(properties, as_objects)


def test_what_an_app_says_of_its_interface_stays_the_very_bytes_where_nulls_go() -> None:
    meta = b'{"ui" : {"resourceUri":"ui://x" , "csp":null}}'
    shown, flaw = ENTRIES[Kind.TOOLS].checked(
        Raw(b'{"name":"t","title":null,"inputSchema":{"type":"object"},"_meta":%b}' % meta)
    )
    assert flaw is None
    assert bytes(shown).endswith(b'"_meta":%b}' % meta)


def test_a_number_that_parsers_give_up_on_is_told() -> None:
    entry = Raw(b'{"name":"t","inputSchema":{"type":"object","x":%b}}' % (b"1" * (MAX_DIGITS + 1)))
    assert "digits" in (ENTRIES[Kind.TOOLS].checked(entry)[1] or "")


def test_what_is_told_of_a_flaw_is_short() -> None:
    flaw = ENTRIES[Kind.TOOLS].checked(raw(tool("t", icons=[{"src": "", "theme": "x" * 10_000}])))[1]
    assert flaw is not None
    assert len(flaw) <= MAX_FLAW


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"inputSchema": None},
        {"inputSchema": True},
        {"inputSchema": []},
        {"input_schema": {"type": "object"}},
        {"inputSchema": {"type": "object", "properties": [], "required": {}}},
        {"inputSchema": {"type": "OBJECT"}},
    ],
)
def test_a_schema_with_one_reading_is_that_of_any_object(said: dict[str, object]) -> None:
    for rule in (ENTRIES[Kind.TOOLS], HANDSHAKE_TOOLS):
        shown, flaw = rule.checked(raw({"name": "t", **said}))
        assert flaw is None
        assert json.loads(bytes(shown))["inputSchema"] == {"type": "object"}


def test_types_in_capitals_are_read_and_values_stay() -> None:
    schema = {"type": "OBJECT", "properties": {"type": {"type": ["STRING", "NULL"], "default": {"type": "STRING"}}}}
    shown, flaw = ENTRIES[Kind.TOOLS].checked(raw({"name": "t", "inputSchema": schema}))
    assert flaw is None
    properties = {"type": {"type": ["string", "null"], "default": {"type": "STRING"}}}
    assert json.loads(bytes(shown))["inputSchema"] == {"type": "object", "properties": properties}
