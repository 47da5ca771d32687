"""Schemas that nobody should write: whatever a server puts into one, nothing of the gateway fails on it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcproxy.access.scanning import scan
from mcproxy.call.identity import AGGREGATE
from mcproxy.catalog.argument_flaws import flaws
from mcproxy.catalog.arguments import UnsupportedSchema, overridden
from mcproxy.catalog.naming import layouts
from mcproxy.catalog.search.own_tools import ToolEffect, effect_of
from mcproxy.catalog.search.ranking import ToolIndex, terms_of
from mcproxy.catalog.search.search_view import is_for_models
from mcproxy.catalog.search.signatures import signature
from mcproxy.catalog.views.snapshots import read_listing
from mcproxy.catalog.views.view import Shown
from mcproxy.concurrency.turns import at_once
from mcproxy.features.results.structured import shortened_arrays
from mcproxy.features.search.indexes import searched_text
from mcproxy.protocol.eras import LATEST, Era
from mcproxy.protocol.headers import InvalidAnnotation, mirrored_parameters
from mcproxy.protocol.jsonrpc import first_level, raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings.access.pins import Approved, Manifest
from mcproxy.settings.upstreams.upstream import ArgumentOverride
from tests.catalog.whole import expose, for_handshake
from tests.fakes.upstream import settings_of

KEYWORDS = [
    *("type", "properties", "required", "enum", "const", "items", "prefixItems", "anyOf", "oneOf", "allOf", "$ref"),
    *("$defs", "definitions", "additionalProperties", "patternProperties", "dependentRequired", "minItems", "default"),
    *("description", "title", "$id", "$schema", "uniqueItems", "x-mcp-header", "p", "q"),
]
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3)
)
words = st.sampled_from(["object", "array", "string", "integer", "p", "#/$defs/p", "#/definitions/q", "#", "Region"])
values = st.recursive(
    scalars | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=5),
    max_leaves=15,
)
schemas = st.fixed_dictionaries(
    {}, optional={"type": st.just("object") | values, "properties": st.dictionaries(st.sampled_from("pq"), values)}
).flatmap(lambda known: st.dictionaries(st.sampled_from(KEYWORDS), values, max_size=4).map(lambda more: more | known))
OVERRIDES = [
    {"p": ArgumentOverride(value=5)},
    {"p": ArgumentOverride(hide=True)},
    {"p": ArgumentOverride(rename="q"), "q": ArgumentOverride(description="d")},
]


def odd_type(kind: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": {"type": kind}, "q": {"type": "array", "items": {"type": kind}}}}


@given(schemas | values, st.dictionaries(st.sampled_from("pqr"), scalars | st.just([1]) | st.just({"a": [1, 2]})))
@example(odd_type([["string"], {"a": 1}]), {"p": 1})
@example(odd_type({"a": 1}), {"p": 1})
@example(odd_type(5), {"p": 1})
@example(odd_type([None]), {"p": 1})
@example({"type": [[]]}, {})
@example({"$ref": None}, {})
@example({"$ref": "#/$defs/p/const", "$defs": {"p": {"const": {"$ref": [None]}}}}, {})
def test_any_schema_is_survived(schema: object, arguments: dict[str, object]) -> None:
    tool = {"name": "t", "inputSchema": schema, "outputSchema": schema, "annotations": schema, "_meta": schema}
    entry, shape = raw(tool), raw(schema)
    assert len(signature("t", entry).splitlines()) == 1
    assert all(isinstance(flaw, str) for flaw in flaws(shape, first_level(arguments)))
    assert effect_of(entry) in ToolEffect
    assert is_for_models(Shown("t", "up", "t", entry)) in (True, False)
    at_once(shortened_arrays(raw({"p": list(range(100)), "q": ["x"] * 100}), shape, 20))
    with suppress(InvalidAnnotation):
        mirrored_parameters(shape)
    for overrides in OVERRIDES:
        with suppress(UnsupportedSchema):
            overridden(first_level(tool), overrides)
    approved = Approved(manifest=Manifest(Era.STATELESS, LATEST, instructions=None, lists={Kind.TOOLS: (entry,)}))
    scan({"up": approved}, {"up": "up"})


@given(values)
def test_any_entry_is_survived(entry: object) -> None:
    for kind in Kind:
        named = {**entry, "name": "t", "uri": "a:b", "uriTemplate": "a:{b}"} if isinstance(entry, dict) else entry
        space = layouts(settings_of({"up": {"tools": {"overrides": {"t": {"title": "T"}}}}}).upstreams, 64)[AGGREGATE]
        exposure = expose(space.space("up"), kind, read_listing("up", kind, [raw(named)]))
        if kind is Kind.TOOLS:
            found = for_handshake(exposure)
            ToolIndex([terms_of(searched_text(shown)) for shown in (*found.shown, *found.unreadable)])


@pytest.mark.parametrize("kind", [[["string"]], [{"a": 1}], {"a": 1}, 5, None, [None, 7]])
def test_a_type_that_is_none_finds_nothing_wrong(kind: object) -> None:
    assert flaws(raw(odd_type(kind)), first_level({"p": 1})) == []
