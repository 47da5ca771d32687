"""The five tools of the gateway's own: valid definitions, and which caller takes which tool."""

from __future__ import annotations

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest

from mcproxy.catalog.search.own_tools import CALLERS, MAX_SERVERS, SCHEMAS, ToolEffect, effect_of, own_tools
from mcproxy.protocol.jsonrpc import raw
from tests.fakes.upstream import decoded

NAMES = ["find_tools", "describe_tools", "call_read", "call_write", "call_destructive"]


def test_there_are_five_and_each_has_a_valid_schema() -> None:
    assert list(own_tools(["git"], tasks=False)) == list(SCHEMAS) == NAMES
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_no_caller_has_an_output_schema_since_results_pass_as_they_are() -> None:
    assert all("outputSchema" not in decoded(entry) for entry in own_tools([], tasks=True).values())


def test_the_annotations_of_each_caller_are_those_of_the_tools_that_it_takes() -> None:
    entries = own_tools([], tasks=False)
    assert {name: effect_of(entries[name]) for name in CALLERS} == CALLERS
    assert {effect_of(entries[name]) for name in ("find_tools", "describe_tools")} == {ToolEffect.READ}


@pytest.mark.parametrize(
    ("annotations", "effect"),
    [
        ({}, ToolEffect.DESTRUCTIVE),
        ({"readOnlyHint": True}, ToolEffect.READ),
        ({"readOnlyHint": True, "destructiveHint": True}, ToolEffect.READ),
        ({"readOnlyHint": False}, ToolEffect.DESTRUCTIVE),
        ({"destructiveHint": False}, ToolEffect.WRITE),
        ({"readOnlyHint": "yes"}, ToolEffect.DESTRUCTIVE),
    ],
)
def test_a_tool_without_annotations_may_destroy(annotations: object, effect: ToolEffect) -> None:
    assert effect_of(raw({"name": "t", "annotations": annotations})) is effect


def test_servers_are_named_as_far_as_they_fit() -> None:
    described = str(
        decoded(own_tools([f"s{n}" for n in range(MAX_SERVERS + 5)], tasks=False)["find_tools"])["description"]
    )
    assert f"s{MAX_SERVERS - 1}, ..." in described
    assert "Servers: none." in str(decoded(own_tools([], tasks=False)["find_tools"])["description"])


def test_callers_may_be_tasks_where_tools_may() -> None:
    entries = own_tools([], tasks=True)
    assert all(decoded(entries[name])["execution"] == {"taskSupport": "optional"} for name in CALLERS)
    assert "execution" not in decoded(entries["find_tools"])
    assert all("execution" not in decoded(entry) for entry in own_tools([], tasks=False).values())
