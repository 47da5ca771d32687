"""The Python SDK's second generation, in either era: by handshake where the script names no other `mode`."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import anyio
import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.client.sse import sse_client

from tests.fakes.clients.python import given_up, leavable, verbs
from tests.fakes.clients.script import Json, OnProgress, Transcript, Verb, dumped, play, serve


def client(script: Json, transcript: Transcript) -> Client:
    answers = script["answers"]

    async def sample(
        context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        transcript.asked("sampling/createMessage", dumped(params))
        return types.CreateMessageResult.model_validate(answers["sampling/createMessage"])

    async def elicit(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        transcript.asked("elicitation/create", dumped(params))
        return types.ElicitResult.model_validate(answers["elicitation/create"])

    async def list_roots(context: ClientRequestContext) -> types.ListRootsResult:
        transcript.asked("roots/list", {})
        return types.ListRootsResult.model_validate(answers["roots/list"])

    async def hear(message: IncomingMessage) -> None:
        if not isinstance(message, Exception):
            transcript.heard(dumped(message))

    return Client(
        _server(script["transport"]),
        mode=script.get("mode", "legacy"),
        sampling_callback=sample,
        elicitation_callback=elicit,
        list_roots_callback=list_roots,
        message_handler=hear,
        log_level="info",
    )


def _server(transport: Json) -> Any:
    match transport:
        case {"command": [command, *args]}:
            return StdioServerParameters(command=command, args=args, env=transport.get("env"))
        case {"kind": "sse", "url": url}:
            return leavable(sse_client(url, timeout=60))
        case _:
            return transport["url"]


def cancelling(session: ClientSession) -> Verb:
    async def cancel(params: Json, _: OnProgress | None) -> Json:
        async def call(on_progress: OnProgress) -> None:
            await session.call_tool(params["name"], params.get("arguments"), progress_callback=on_progress)

        async def leave() -> None:
            """Says nothing: this generation tells the server itself where a call is cancelled."""

        return await given_up(call, leave=leave)

    return cancel


def listening(connection: Client, stack: AsyncExitStack) -> Verb:
    async def listen(params: Json, _: OnProgress | None) -> Json:
        wanted = connection.listen(tools_list_changed=True, resource_subscriptions=params["uris"])
        await stack.enter_async_context(wanted)
        return {}

    return listen


async def connect_and_play(script: Json, transcript: Transcript) -> None:
    async with client(script, transcript) as connection, AsyncExitStack() as stack:
        session = connection.session
        initialized = session.initialize_result or session.discover_result
        assert initialized is not None
        transcript.server = dumped(initialized)
        table = verbs(session, connection.call_tool, types, str, cancelling(session))
        if session.initialize_result is None:
            table["listen"] = listening(connection, stack)
        await play(script, table, transcript, MCPError)


serve(lambda script, transcript: anyio.run(connect_and_play, script, transcript))
