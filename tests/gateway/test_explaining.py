"""The twin of `mcproxy.gateway.explaining`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcproxy.call.calls import Failed
from mcproxy.call.identity import Caller, Principal
from mcproxy.gateway.explaining import Explanation, kind_of
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from tests.fakes.upstream import FakeUpstream, House, complete, house, resource, tool

pytestmark = pytest.mark.anyio

ACCESS: dict[str, Any] = {
    "policy": {
        "roles": {
            "reader": {
                "allow": [
                    {"upstreams": ["files"], "read_only": True},
                    {"upstreams": ["files"], "resources": ["file:///open/*"]},
                    {"upstreams": ["files"], "tools": ["query"], "arguments": {"n": {"at_most": 3}}},
                ],
                "deny": [{"tools": ["dangerous"]}],
            }
        },
        "principals": {"ann": ["reader"]},
    }
}
OPTIONS = {
    "files": {"tools": {"exclude": ["rm*"], "overrides": {"long_name": {"name": "short"}, "twin": {"name": "look"}}}}
}
SECRET = "sk-live-0123456789abcdef"
ENDPOINTS = {"part": {"tools": ["look"]}, "team": {"roles": ["ops"]}}


def files() -> FakeUpstream:
    upstream = FakeUpstream("files")
    read_only = {"annotations": {"readOnlyHint": True}}
    names = ["look", "twin", "long_name", "rm_all", "dangerous"]
    upstream.lists[Kind.TOOLS] = [*(tool(name, **read_only) for name in names), tool("write"), tool("query")]
    upstream.lists[Kind.RESOURCES] = [resource("file:///open/a"), resource("file:///shut")]
    upstream.answers["tools/call"] = upstream.answers["resources/read"] = lambda call: complete()
    return upstream


def explain(gateway: House, method: str, subject: str, endpoint: str = "", **arguments: object) -> Explanation:
    caller = Caller(Principal("ann"), LATEST, endpoint=endpoint)
    return gateway.gateway.explain(
        caller, kind_of(method, subject), subject, {key: raw(value) for key, value in arguments.items()}
    )


@pytest.mark.parametrize(
    ("method", "subject", "endpoint", "last", "why"),
    [
        ("tools/call", "files__look", "", "policy", "allowed by roles.reader.allow, rule 1"),
        ("tools/call", "files__short", "", "policy", "allowed by roles.reader.allow, rule 1"),
        ("tools/call", "look", "files", "policy", "allowed by roles.reader.allow, rule 1"),
        ("tools/call", "files__look", "/part", "policy", "allowed by roles.reader.allow, rule 1"),
        ("resources/read", "files+file:///open/x", "", "policy", "allowed by roles.reader.allow, rule 2"),
        ("tools/call", "files__write", "", "policy", "denied by default: no rule speaks of it"),
        ("tools/call", "files__dangerous", "", "policy", "denied by roles.reader.deny, rule 1"),
        ("resources/read", "files+file:///shut", "", "policy", "denied by default: no rule speaks of it"),
        ("resources/read", "files+file:///open/../shut", "", "policy", "denied by default: no rule speaks of it"),
        ("tools/call", "files__rm_all", "", "filter", "files: tools.exclude has 'rm*'"),
        ("tools/call", "files__short", "/part", "filter", "the endpoint selects no such tools"),
        ("tools/call", "files__nil", "", "name", "'files__nil' is not listed, as far as is known"),
        ("resources/read", "nobody+x:y", "", "name", "'nobody+x:y' is not listed, as far as is known"),
        (
            "tools/call",
            "files__look",
            "/team",
            "endpoint",
            "/mcp/team is for ops alone, and for those who may use something of it",
        ),
        ("tools/call", "x", "/nil", "endpoint", "/mcp/nil has nothing, or does not exist"),
    ],
)
async def test_the_last_step_is_what_decides(method: str, subject: str, endpoint: str, last: str, why: str) -> None:
    async with house(files(), access=ACCESS, options=OPTIONS, endpoints=ENDPOINTS) as gateway:
        await gateway.ready()
        explanation = explain(gateway, method, subject, endpoint)
        assert (explanation.steps[-1].what, explanation.steps[-1].why) == (last, why)
        assert explanation.allowed is why.startswith("allowed")
        key = "uri" if method == "resources/read" else "name"
        outcome = await gateway.call(method, principal=Principal("ann"), endpoint=endpoint, **{key: subject})  # type: ignore[arg-type]  # one of its params
        assert explanation.allowed is not isinstance(outcome, Failed)


async def test_a_name_that_another_tool_took_is_told() -> None:
    async with house(files(), access=ACCESS, options=OPTIONS) as gateway:
        await gateway.ready()
        refused = [entry.name for entry in gateway.gateway.catalogue().refused]
        assert refused == ["twin"]
        assert explain(gateway, "tools/call", "files__look").steps[-2].why == "files calls it 'look'"


DEEP: Any = json.loads("[" * 250 + "]" * 250)
BOOLEAN_OUTPUT = {"type": "object", "properties": {"a": {"b": 1}}, "required": [1]}
SEARCHED = {"agent": {"discovery": "search"}}


@pytest.mark.parametrize(
    ("entry", "step", "passes", "why"),
    [
        (tool("look", title=7), "list", True, "left out of all lists: clients cannot read it: Expected `str`"),
        (
            tool("look", outputSchema=BOOLEAN_OUTPUT),
            "list",
            True,
            "left out of the lists of handshake clients: clients cannot read it: Expected `str`",
        ),
        (tool("look", x=DEEP), "name", False, "files calls it 'look', and it nests deeper than 200 levels"),
        ({"name": 7}, "name", False, "is not listed, as far as is known; files lists 1 of its tools without a name"),
    ],
)
async def test_an_entry_that_is_left_out_as_malformed_is_told(entry: object, step: str, passes: bool, why: str) -> None:
    upstream, other = FakeUpstream("files"), FakeUpstream("other")
    upstream.lists[Kind.TOOLS] = [entry, tool("fine"), tool("fine")]
    other.lists[Kind.TOOLS] = [tool("look", description=7)]
    async with house(other, upstream) as gateway:
        await gateway.ready()
        explanation = explain(gateway, "tools/call", "files__look")
        (found,) = [each for each in explanation.steps if each.what == step]
        assert (found.passes, explanation.allowed) == (passes, passes)
        assert why in found.why
        assert "list" not in [each.what for each in explain(gateway, "tools/call", "files__fine").steps]


async def test_a_malformed_resource_is_told_too() -> None:
    upstream = FakeUpstream("files")
    upstream.lists[Kind.RESOURCES] = [resource("file:///a", title=7), resource("file:///b")]
    async with house(upstream) as gateway:
        await gateway.ready()
        told = [step.why for step in explain(gateway, "resources/read", "files+file:///a").steps if step.what == "list"]
        assert [why.partition(" - ")[0] for why in told] == [
            "left out of all lists: clients cannot read it: Expected `str`, got `int`"
        ]
        assert "list" not in [step.what for step in explain(gateway, "resources/read", "files+file:///b").steps]


async def test_a_tool_that_is_left_to_be_found_is_told() -> None:
    async with house(files(), endpoints=SEARCHED) as gateway:
        await gateway.ready()
        told = [step.why for step in explain(gateway, "tools/call", "files__look", "/agent").steps]
        assert "left out, to be found by find_tools" in told


async def test_arguments_are_judged_as_in_a_call() -> None:
    async with house(files(), access=ACCESS) as gateway:
        await gateway.ready()
        assert explain(gateway, "tools/call", "files__query", n=3).allowed
        assert not explain(gateway, "tools/call", "files__query", n=4).allowed
        assert not explain(gateway, "tools/call", "files__query").allowed


async def test_r44_what_the_settings_add_to_arguments_is_told_without_secrets() -> None:
    schema = {"type": "object", "properties": {"key": {"type": "string"}, "to": {"type": "string"}}}
    files = FakeUpstream("files")
    files.lists[Kind.TOOLS] = [tool("send", inputSchema=schema)]
    options = {"files": {"tools": {"overrides": {"send": {"arguments": {"key": {"value": f"Bearer {SECRET}"}}}}}}}
    async with house(files, options=options) as gateway:
        await gateway.ready()
        gateway.gateway.reconfigure(gateway.settings.keeping_secret({SECRET}), dict(gateway.upstreams))
        told = {step.what: step.why for step in explain(gateway, "tools/call", "files__send", to=SECRET).steps}
        assert told["arguments"] == f'files gets {{"to":"{SECRET}","key":"Bearer [redacted]"}}'


async def test_the_state_and_the_era_of_the_upstream_are_told() -> None:
    async with house(files()) as gateway:
        await gateway.ready()
        gateway["files"].disconnect()
        upstream = explain(gateway, "tools/call", "files__nil").steps[1]
        assert (upstream.what, upstream.passes, upstream.why) == ("upstream", True, "files: backing_off")


def test_a_method_about_nothing_in_particular_is_an_error() -> None:
    with pytest.raises(ValueError, match="no method that is about"):
        kind_of("tools/list", "x")
    with pytest.raises(ValueError, match="did you mean 'tools/call'"):
        kind_of("tool/call", "x")
