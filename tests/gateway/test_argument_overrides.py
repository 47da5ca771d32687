"""Overridden arguments (`tools.overrides.NAME.arguments`), through all of the gateway, in both eras."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Raw

from mcproxy.access.pins import approved
from mcproxy.call.calls import Call
from mcproxy.call.identity import ANONYMOUS, Caller, Principal
from mcproxy.features.approvals.feature import CallApprovals
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings.access.pins import PinSettings
from tests.fakes.upstream import FakeUpstream, House, complete, decoded, error, house, quiet, tool

pytestmark = pytest.mark.anyio

READ = tool(
    "read",
    inputSchema={
        "type": "object",
        "properties": {
            "path": {"type": "string", "x-mcp-header": "Path"},
            "q": {"type": "string", "x-mcp-header": "Query"},
            "verbose": {"type": "boolean"},
        },
        "required": ["path", "q"],
    },
)
CHOSEN = {
    "path": {"value": "/srv/${caller.name}"},
    "q": {"rename": "query"},
    "verbose": {"hide": True, "default": False},
}
ALICE = Principal("alice", frozenset({"staff"}))


def server(*tools: dict[str, object]) -> FakeUpstream:
    upstream = FakeUpstream("up")
    upstream.lists[Kind.TOOLS] = tools or [READ, tool("other")]
    upstream.answers["tools/call"] = lambda call: complete(content=[])
    return upstream


def options(arguments: Mapping[str, object] = CHOSEN) -> dict[str, Mapping[str, object]]:
    return {"up": {"tools": {"overrides": {"read": {"arguments": arguments}}}}}


async def ready(h: House) -> None:
    await h.ready()
    await quiet()


def got(h: House) -> Any:
    """The arguments that the upstream got last."""
    call: Call = h["up"].calls[-1]
    return json.loads(bytes(call.params["arguments"]))


@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_callers_see_and_send_what_the_settings_say_and_the_upstream_gets_its_own(version: str) -> None:
    async with house(server(), options=options()) as h:
        await ready(h)
        shown: Any = decoded(await h.call("tools/list", version=version))["tools"]
        assert list(shown[0]["inputSchema"]["properties"]) == ["query"]
        await h.call("tools/call", version=version, principal=ALICE, name="up__read", arguments={"query": "x"})
        assert got(h) == {"q": "x", "path": "/srv/alice", "verbose": False}
        for sent in ({"query": "x", "path": "/etc"}, {"q": "x"}, {"query": "x", "verbose": True}):
            refusal = error(await h.call("tools/call", version=version, name="up__read", arguments=sent))
            assert "is not one that callers may send; known arguments: query" in refusal.message
        assert h["up"].count("tools/call") == 1
        refusal = error(await h.call("tools/call", version=version, name="up__read", arguments=[]))
        assert refusal.message == '"arguments" must be an object'


LIMITED = tool(
    "read",
    inputSchema={
        "type": "object",
        "properties": {
            "pth": {"type": "string", "maxLength": 5, "pattern": "^/"},
            "n": {"type": "integer", "minimum": 1, "maximum": 10},
            "kind": {"enum": ["a", "b"]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
            "options": {"type": "object", "required": ["as"], "additionalProperties": False, "properties": {"as": {}}},
            "never": False,
            "odd": {"type": "string", "pattern": "(?=x)"},
        },
        "required": ["pth"],
        "dependentRequired": {"n": ["kind"]},
        "$defs": {"tag": {"type": "string", "minLength": 1}},
    },
)
RENAMED = {"pth": {"rename": "path"}, "n": {"rename": "limit"}, "kind": {"rename": "sort"}}


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        ({}, "the argument 'path' is required"),
        ({"pth": "/a"}, "the argument 'pth' is not one that callers may send"),
        ({"path": None}, "the argument 'path' is not of type string"),
        ({"path": "/12345"}, "the argument 'path' has more than 5 characters"),
        ({"path": "a"}, "the argument 'path' does not match '^/'"),
        ({"path": "/a", "limit": 11, "sort": "a"}, "the argument 'limit' is more than 10"),
        ({"path": "/a", "limit": 1.5, "sort": "a"}, "the argument 'limit' is not of type integer"),
        ({"path": "/a", "limit": Raw(b"1e999"), "sort": "a"}, "the argument 'limit' has a number that is too large"),
        ({"path": "/a", "limit": 1}, "the argument 'limit' is given without 'sort', which it needs"),
        ({"path": "/a", "sort": "c"}, "the argument 'sort' is not one of the values that are allowed"),
        ({"path": "/a", "tags": ["a", ""]}, "the argument 'tags' item 1 has fewer than 1 characters"),
        ({"path": "/a", "tags": ["a", "b", "c"]}, "the argument 'tags' has more than 2 items"),
        ({"path": "/a", "options": {}}, "the argument 'options' lacks 'as'"),
        ({"path": "/a", "options": {"as": 1, "x": 1}}, "the argument 'options' 'x' is not allowed"),
        ({"path": "/a", "never": 1}, "the argument 'never' is not allowed"),
        ({"path": "/a", "odd": 1}, "the argument 'odd' is not of type string"),
        ({"path": ["x"] * 20_000}, "the argument 'path' is not of type string"),
        ({"path": "x" * 100_000}, "the argument 'path' has more than 5 characters"),
    ],
)
@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_r89_the_schema_that_callers_are_shown_is_the_one_that_holds(
    sent: dict[str, object], refusal: str, version: str
) -> None:
    async with house(server(LIMITED), options=options(RENAMED)) as h:
        await ready(h)
        refused = error(await h.call("tools/call", version=version, name="up__read", arguments=sent))
        assert refused.code == INVALID_PARAMS
        assert refused.message.startswith(refusal)
        assert "pth" not in refused.message or "pth" in sent
        assert h["up"].count("tools/call") == 0


@pytest.mark.parametrize(
    "sent",
    [
        {"path": "/a"},
        {"path": "/a", "limit": 10.0, "sort": "b", "tags": ["a", "b"], "options": {"as": [1]}},
        {"path": "/a", "odd": "what no pattern of ours can judge"},
    ],
)
async def test_what_is_valid_under_the_schema_that_callers_are_shown_is_sent(sent: dict[str, object]) -> None:
    async with house(server(LIMITED), options=options(RENAMED)) as h:
        await ready(h)
        assert decoded(await h.call("tools/call", name="up__read", arguments=sent)) == {"content": []}
        own = {"path": "pth", "limit": "n", "sort": "kind"}
        assert got(h) == {own.get(name, name): value for name, value in sent.items()}


async def test_r89_a_person_is_not_asked_about_arguments_that_are_not_valid() -> None:
    access = {"policy": {"roles": {"everyone": {"allow": [{"approve": "operator"}]}}}}
    async with house(server(LIMITED), options=options(RENAMED), access=access) as h:
        await ready(h)
        assert "is required" in error(await h.call("tools/call", name="up__read", arguments={})).message
        assert h.gateway.feature(CallApprovals).waiting() == []


async def test_parameters_in_headers_are_those_that_callers_send() -> None:
    async with house(server(), options=options()) as h:
        await ready(h)
        mirrored = h.gateway.mirrored(Caller(ANONYMOUS, LATEST), "up__read")
        assert [(parameter.header, parameter.path) for parameter in mirrored] == [("Mcp-Param-Query", ("query",))]


async def test_the_policy_judges_the_arguments_that_the_upstream_gets() -> None:
    rules = [{"tools": ["read"], "arguments": {"path": {"equals": "/srv/alice"}, "q": {"matches": "[a-z]+"}}}]
    access = {"policy": {"roles": {"everyone": {"allow": rules}}}}
    async with house(server(), options=options(), access=access) as h:
        await ready(h)
        allowed = await h.call("tools/call", principal=ALICE, name="up__read", arguments={"query": "x"})
        assert decoded(allowed) == {"content": []}
        for principal, query in ((ALICE, "X"), (Principal("bob"), "x")):
            refusal = error(
                await h.call("tools/call", principal=principal, name="up__read", arguments={"query": query})
            )
            assert refusal.message == "Unknown tool: up__read"
        found = h.gateway.explain(Caller(ALICE, LATEST), Kind.TOOLS, "up__read", {"query": raw("x")})
        assert found.allowed
        assert '"path":"/srv/alice"' in {step.what: step.why for step in found.steps}["arguments"]
        found = h.gateway.explain(Caller(ALICE, LATEST), Kind.TOOLS, "up__read", {"q": raw("x")})
        assert (found.allowed, found.steps[-1].what) == (False, "arguments")


async def test_a_tool_whose_arguments_cannot_be_overridden_is_hidden_and_operators_are_told_why() -> None:
    schema = {"type": "object", "properties": {"path": {}}, "oneOf": [{"required": ["path"]}, {}]}
    async with house(server(tool("read", inputSchema=schema), tool("other")), options=options()) as h:
        await ready(h)
        assert await h.listed(Kind.TOOLS) == ["up__other"]
        assert error(await h.call("tools/call", name="up__read")).message == "Unknown tool: up__read"
        (refused,) = h.gateway.catalogue().refused
        assert refused.why == (
            "its arguments cannot be as tools.overrides says: its inputSchema uses 'oneOf' for all arguments together"
        )


async def test_what_is_approved_is_the_definition_of_the_upstream_itself() -> None:
    lock = {"up": approved(None, {Kind.TOOLS: {"read": raw(READ)}})}
    access = {"pins": PinSettings.model_validate({"mode": "enforce"}).holding(lock)}
    async with house(server(READ), options=options(), access=access) as h:
        await ready(h)
        assert await h.listed(Kind.TOOLS) == ["up__read"]


@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_a_value_of_the_caller_that_the_upstreams_schema_does_not_take_is_not_sent(version: str) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string", "pattern": "^/srv/a"}}}
    chosen = {"path": {"value": "/srv/${caller.name}"}}
    async with house(server(tool("read", inputSchema=schema)), options=options(chosen)) as h:
        await ready(h)
        refusal = error(await h.call("tools/call", version=version, principal=Principal("bob"), name="up__read"))
        assert refusal.message.endswith("an argument that does not take yours, which does not match '^/srv/a'")
        assert h["up"].count("tools/call") == 0
        await h.call("tools/call", version=version, principal=ALICE, name="up__read")
        assert got(h) == {"path": "/srv/alice"}
