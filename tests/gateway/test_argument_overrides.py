"""Overridden arguments (`tools.overrides.NAME.arguments`), through all of the gateway, in both eras."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from mcproxy.access.pins import approved
from mcproxy.call.calls import Call
from mcproxy.call.identity import ANONYMOUS, Caller, Principal
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import raw
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
