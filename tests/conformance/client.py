"""The client of the conformance suite's client scenarios: the gateway, made to do everything that a server offers.

`python -m tests.conformance.client URL` is run by the suite, which judges what its server at URL was sent. An SDK
client, in the era that the suite asks for, lists and uses all that it finds there through a gateway in between.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError

from tests.system.running import configuration, gateway

ERA = "MCPROXY_CLIENT_ERA"
"""The variable that says how our client speaks: `legacy`, or `auto` for the newest that the gateway speaks."""

Json = dict[str, Any]

ARGUMENTS: dict[str, Json] = {"add_numbers": {"a": 5, "b": 3}, "valid_tool": {"region": "eu"}}
"""By tool, where it needs any."""


async def accept_defaults(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Accepts a form as it came: with the defaults of its schema (2025-11-25, elicitation)."""
    assert isinstance(params, types.ElicitRequestFormParams)
    properties = params.requested_schema["properties"]
    defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
    return types.ElicitResult(action="accept", content=defaults)


def calls_of(tools: list[types.Tool]) -> list[Json]:
    """What the suite asks to be called, or each tool once."""
    if "MCP_CONFORMANCE_CONTEXT" in os.environ:
        context: Json = json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])
        if "toolCalls" in context:
            calls: list[Json] = context["toolCalls"]
            return calls
    return [{"name": tool.name, "arguments": arguments_of(tool, tools)} for tool in tools]


def arguments_of(tool: types.Tool, tools: list[types.Tool]) -> Json:
    """A tool that asks for a schema gets that of another, as it was listed."""
    if "schema" in tool.input_schema.get("properties", {}):
        return {"schema": next(other.input_schema for other in tools if other is not tool)}
    return ARGUMENTS.get(tool.name, {})


async def use(client: Client) -> None:
    """Uses everything. All tools are called at once, so that what belongs to one call could reach another."""
    capabilities = client.server_capabilities
    if capabilities.tools:
        tools = (await client.list_tools()).tools
        async with anyio.create_task_group() as tasks:
            for call in calls_of(tools):
                tasks.start_soon(attempt, client, call)
    if capabilities.resources:
        for resource in (await client.list_resources()).resources:
            await client.read_resource(resource.uri)
    if capabilities.prompts:
        for prompt in (await client.list_prompts()).prompts:
            await client.get_prompt(prompt.name)


async def attempt(client: Client, call: Json) -> None:
    """Some of the suite's servers refuse to be called: it judges what they were sent."""
    with suppress(MCPError):
        await client.call_tool(call["name"], call["arguments"])


async def main(url: str) -> None:
    settings = configuration({"suite": {"url": url, "prefix": ""}})
    with TemporaryDirectory() as folder:
        async with gateway(Path(folder), settings) as running:
            own = f"{running.url}/mcp"
            async with Client(own, mode=os.environ[ERA], elicitation_callback=accept_defaults) as client:
                await use(client)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
