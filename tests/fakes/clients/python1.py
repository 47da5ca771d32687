"""The Python SDK's first generation, run by the Python of `.cache/sdk1`."""

# mypy: ignore-errors
# The types here are those of another generation of the SDK than mypy sees.

from __future__ import annotations

import sys
from contextlib import asynccontextmanager

import anyio
from mcp import ClientSession, McpError, StdioServerParameters, stdio_client, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl, TypeAdapter

from tests.fakes.clients.python import CANCEL_REASON, given_up, leavable, verbs
from tests.fakes.clients.script import dumped, play, serve


@asynccontextmanager
async def connected(transport):
    match transport:
        case {"command": [command, *args]}:
            server = StdioServerParameters(command=command, args=args, env=transport.get("env"))
            async with stdio_client(server, errlog=sys.stderr) as streams:
                yield streams
        case {"kind": "sse", "url": url}:
            async with leavable(sse_client(url, timeout=60)) as streams:
                yield streams
        case {"url": url}:
            async with streamable_http_client(url) as (read, write, _):
                yield read, write


def callbacks(answers, transcript):
    async def sample(_, params):
        transcript.asked("sampling/createMessage", dumped(params))
        return types.CreateMessageResult.model_validate(answers["sampling/createMessage"])

    async def elicit(_, params):
        transcript.asked("elicitation/create", dumped(params))
        return types.ElicitResult.model_validate(answers["elicitation/create"])

    async def list_roots(_):
        transcript.asked("roots/list", {})
        return types.ListRootsResult.model_validate(answers["roots/list"])

    async def hear(message):
        if isinstance(message, types.ServerNotification):
            transcript.heard(dumped(message))

    return {
        "sampling_callback": sample,
        "elicitation_callback": elicit,
        "list_roots_callback": list_roots,
        "message_handler": hear,
    }


def cancelling(session):
    async def cancel(params, _):
        id = session._request_id  # this generation tells its callers no request's id

        async def call(on_progress):
            await session.call_tool(params["name"], params.get("arguments"), progress_callback=on_progress)

        async def leave():
            cancelled = types.CancelledNotificationParams(requestId=id, reason=CANCEL_REASON)
            await session.send_notification(types.ClientNotification(types.CancelledNotification(params=cancelled)))

        return await given_up(call, leave=leave)

    return cancel


async def connect_and_play(script, transcript):
    async with (
        connected(script["transport"]) as (read, write),
        ClientSession(read, write, **callbacks(script["answers"], transcript)) as session,
    ):
        transcript.server = dumped(await session.initialize())
        table = verbs(session, session.call_tool, types, TypeAdapter(AnyUrl).validate_python, cancelling(session))
        await play(script, table, transcript, McpError)


def main(script, transcript):
    try:
        anyio.run(connect_and_play, script, transcript)
    except* anyio.BrokenResourceError:
        pass  # this generation trips over a message that comes while it leaves


serve(main)
