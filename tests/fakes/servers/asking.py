"""How a tool on the official SDK asks its client in either era: in rounds, or in the middle of the call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from mcp.server.mcpserver import Context
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)

from mcproxy.protocol.eras import STATELESS_VERSIONS

Responses = Mapping[str, Any]


def is_stateless(ctx: Context[Any, Any]) -> bool:
    return ctx.protocol_version in STATELESS_VERSIONS


async def ask(
    ctx: Context[Any, Any], requests: dict[str, InputRequest], state: str | None = None
) -> Responses | InputRequiredResult:
    """The client's answers by key, or what to return so that a modern client brings them."""
    if is_stateless(ctx):
        responses = ctx.input_responses or {}
        if requests.keys() <= responses.keys():
            return responses
        return InputRequiredResult(input_requests=requests, request_state=state)
    answers: dict[str, Any] = {}

    async def put(key: str, request: InputRequest) -> None:
        answers[key] = await _put(ctx, request)

    async with anyio.create_task_group() as tasks:
        for key, request in requests.items():
            tasks.start_soon(put, key, request)
    return answers


async def _put(ctx: Context[Any, Any], request: InputRequest) -> object:
    match request:
        case ElicitRequest(params=ElicitRequestFormParams() as form):
            return await ctx.session.elicit_form(form.message, form.requested_schema, related_request_id=ctx.request_id)
        case CreateMessageRequest(params=sampling):
            return await ctx.session.create_message(
                messages=sampling.messages, max_tokens=sampling.max_tokens, related_request_id=ctx.request_id
            )
        case _:
            return await ctx.session.send_request(ListRootsRequest(), ListRootsResult)


def form(message: str, **properties: dict[str, Any]) -> ElicitRequest:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(text: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=100))
