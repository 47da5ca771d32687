"""The client of the conformance suite's client scenarios: the gateway, made to do everything that a server offers.

The suite judges what its server was sent. An SDK client lists and uses all that it finds there, through the gateway.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError

Json = dict[str, Any]

ARGUMENTS: dict[str, Json] = {"add_numbers": {"a": 5, "b": 3}, "valid_tool": {"region": "eu"}}
"""By tool, where it needs any."""


async def accept_defaults(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Accepts a form as it came: with the defaults of its schema (2025-11-25, elicitation)."""
    assert isinstance(params, types.ElicitRequestFormParams)
    properties = params.requested_schema["properties"]
    defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
    return types.ElicitResult(action="accept", content=defaults)


def calls_of(tools: list[types.Tool], context: Json) -> list[Json]:
    """What the suite's context asks to be called, or each tool once."""
    if "toolCalls" in context:
        calls: list[Json] = context["toolCalls"]
        return calls
    return [{"name": tool.name, "arguments": arguments_of(tool, tools)} for tool in tools]


def arguments_of(tool: types.Tool, tools: list[types.Tool]) -> Json:
    """A tool that asks for a schema gets that of another, as it was listed."""
    if "schema" in tool.input_schema.get("properties", {}):
        return {"schema": next(other.input_schema for other in tools if other is not tool)}
    return ARGUMENTS.get(tool.name, {})


async def use(client: Client, context: Json) -> None:
    """Uses everything. All tools are called at once, so that what belongs to one call could reach another."""
    capabilities = client.server_capabilities
    if capabilities.tools:
        tools = (await client.list_tools()).tools
        async with anyio.create_task_group() as tasks:
            for call in calls_of(tools, context):
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


async def use_all(url: str, era: str, context: Json) -> None:
    """Uses all that is behind the gateway's endpoint at `url`; `era` is `legacy`, or `auto` for the newest."""
    async with Client(url, mode=era, elicitation_callback=accept_defaults) as client:
        await use(client, context)
