"""The official SDK as the client, over every transport of the handshake eras."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters

from mcproxy.call.calls import Call, Outcome
from mcproxy.call.clients import ListChanged
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from tests.fakes.clients.python import leavable
from tests.fakes.gateway import FakeGateway, asking, quick, served
from tests.fakes.stdio_gateway import FORM
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

TRANSPORTS = ("streamable", "sse", "stdio")


async def accept(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={})


def questioning() -> FakeGateway:
    gateway = FakeGateway()
    gateway.answers["tools/call"] = asking("elicitation/create", {"message": "?", "requestedSchema": FORM})
    return gateway


@asynccontextmanager
async def connected(transport: str, gateway: FakeGateway, **options: Any) -> AsyncIterator[Client]:
    if transport == "stdio":
        program = StdioServerParameters(command=sys.executable, args=["-m", "tests.fakes.stdio_gateway"])
        async with Client(program, mode="legacy", elicitation_callback=accept, **options) as client:
            yield client
        return
    async with served(gateway, quick(stream_after=0.05)) as running:
        sse = leavable(sse_client(f"{running.url}/sse", timeout=GUARD))
        server = f"{running.url}/mcp" if transport == "streamable" else sse
        async with Client(server, mode="legacy", elicitation_callback=accept, **options) as client:
            yield client


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_it_initialises_lists_and_answers_a_question(transport: str) -> None:
    with anyio.fail_after(GUARD):
        async with connected(transport, questioning()) as client:
            assert client.server_info is not None
            assert client.server_info.name == "fake"
            assert client.instructions == "Be kind."
            assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]
            result = await client.call_tool("echo", {})
            assert result.structured_content == {"answer": {"action": "accept", "content": {}}}


@pytest.mark.parametrize("transport", ["streamable", "sse"])
async def test_it_hears_of_changes(transport: str) -> None:
    heard = anyio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            heard.set()

    gateway = FakeGateway()
    with anyio.fail_after(GUARD):
        async with connected(transport, gateway, message_handler=hear) as client:
            await client.list_tools()
            gateway.present[0].signal(ListChanged(Kind.TOOLS))
            await heard.wait()


@pytest.mark.parametrize("transport", ["streamable", "sse"])
async def test_it_hears_of_progress(transport: str) -> None:
    seen: list[float] = []

    async def see(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async def report(call: Call) -> Outcome:
        for step in (1, 2):
            call.client.notify("notifications/progress", {"progress": raw(step)})
        return await FakeGateway().answers["tools/call"](call)

    gateway = FakeGateway()
    gateway.answers["tools/call"] = report
    with anyio.fail_after(GUARD):
        async with connected(transport, gateway) as client:
            await client.call_tool("echo", {}, progress_callback=see)
            assert seen == [1, 2]


async def test_it_ends_its_session_when_it_leaves() -> None:
    gateway = FakeGateway()
    with anyio.fail_after(GUARD):
        async with served(gateway) as running:
            async with Client(f"{running.url}/mcp", mode="legacy") as client:
                await client.list_tools()
            await gateway.emptied_of(1)
