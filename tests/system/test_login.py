"""Logging in to a server from a client, as a person does: the link that the client shows, and the pages behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext

from tests.fakes.authorization import Authorization, authorization
from tests.fakes.browser import Browser, browser, link_in
from tests.system.running import Gateway, Json, configuration, serving, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def guarded(folder: Path, **more: Any) -> AsyncIterator[tuple[Authorization, Gateway, Browser]]:
    """A server that wants OAuth behind a gateway that says no more than `oauth: {}`; and a person's browser."""
    with anyio.fail_after(GUARD):
        async with authorization() as server:
            settings: Json = configuration({"web": {"url": server.url, "oauth": {}}}) | more
            async with serving(folder, write(folder, settings)) as running, browser() as person:
                yield server, running, person


async def until_listed(client: Client, *names: str) -> None:
    """Returns once the client sees these tools and no others: the list follows a login."""
    while True:
        if tuple(tool.name for tool in (await client.list_tools()).tools) == names:
            return
        await anyio.sleep(0.02)


class Answering:
    """A client that is asked to open a link: `opens` logs in before it answers, as a quick person does."""

    def __init__(self, person: Browser) -> None:
        self.person = person
        self.asked: list[types.ElicitRequestURLParams] = []
        self.done: list[str] = []

    async def __call__(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams)
        self.asked.append(params)
        self.done.append((await self.person.log_in(params.url)).title)
        return types.ElicitResult(action="accept")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_opens_links_is_asked_and_its_call_runs_once(mode: str, tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, running, person):
        answering = Answering(person)
        async with Client(f"{running.url}/mcp", mode=mode, elicitation_callback=answering) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["web__login"]
            result = await client.call_tool("web__work", {})
    assert result.structured_content == {"value": "done"}
    assert server.served.count("tools/call") == 1
    assert answering.done == ["Logged in to web · mcproxy"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_opens_none_gets_the_link_and_a_tool_and_its_call_runs_once(
    mode: str, tmp_path: Path
) -> None:
    async with guarded(tmp_path) as (server, running, person), Client(f"{running.url}/mcp", mode=mode) as client:
        refused = await client.call_tool("web__work", {})
        assert refused.is_error
        told = await client.call_tool("web__login", {})
        assert not told.is_error
        [text] = [block.text for block in told.content if isinstance(block, types.TextContent)]
        done = await person.log_in(link_in(text))
        assert done.status == 200
        await until_listed(client, "web__work")
        result = await client.call_tool("web__work", {})
        again = await client.call_tool("web__login", {})
    assert result.structured_content == {"value": "done"}
    assert server.served.count("tools/call") == 1
    assert not again.is_error
