"""A server that ends its stream of changes before it acknowledges the next one: what changed between is not missed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from mcproxy.app import App, running
from mcproxy.call.calls import Call
from mcproxy.call.clients import ListChanged, ResourceUpdated
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.protocol.eras import LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind, row_of
from mcproxy.settings import Settings
from tests.fakes.servers.stateless import EVERYTHING, FakeStateless, Listener
from tests.fakes.servers.web import serving
from tests.fakes.upstream import FakeClient, FakeListener, decoded, tool
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

WATCHED, OTHER = "up+note:watched", "up+note:other"


async def ask(app: App, listener: FakeListener, method: str, **params: object) -> dict[str, Any]:
    raw_params = {key: raw(value) for key, value in params.items()}
    return decoded(await app.gateway.handler(Call(row_of(method), raw_params, listener.caller, FakeClient(), listener)))


async def text(app: App, listener: FakeListener) -> str:
    [content] = (await ask(app, listener, "resources/read", uri=WATCHED))["contents"]
    return str(content["text"])


async def tools(app: App, listener: FakeListener) -> list[str]:
    return [entry["name"] for entry in (await ask(app, listener, "tools/list"))["tools"]]


@asynccontextmanager
async def watching(server: FakeStateless) -> AsyncIterator[tuple[App, FakeListener]]:
    """A gateway with a coherent cache in front of `server`, and a client that watches a resource through it."""
    with anyio.fail_after(GUARD):
        async with serving(server, notices_hang_up=True) as url:
            spec = {"name": "up", "prefix": "up", "url": url, "cache": {"coherent": True}}
            async with running(Settings.model_validate({"upstreams": [spec]})) as app:
                await app.gateway.settled()
                listener = FakeListener(Caller(ANONYMOUS, LATEST_HANDSHAKE, session="one"))
                app.gateway.join(listener)
                await ask(app, listener, "resources/subscribe", uri=WATCHED)
                yield app, listener


async def test_r21_what_changes_between_two_streams_is_told_read_and_listed() -> None:
    server, may_acknowledge = FakeStateless(capabilities=EVERYTHING, text="old", pages=[[tool("one")]]), anyio.Event()

    async def acknowledge(stream: Listener) -> None:
        await may_acknowledge.wait()
        await stream.acknowledge()

    async with watching(server) as (app, listener), anyio.create_task_group() as tasks:
        server.acknowledges = acknowledge
        streams = len(server.sent("subscriptions/listen"))
        tasks.start_soon(partial(ask, app, listener, "resources/subscribe", uri=OTHER))
        await server.until(lambda: len(server.sent("subscriptions/listen")) > streams)
        assert [await text(app, listener) for _ in range(2)] == ["old", "old"]
        assert len(server.sent("resources/read")) == 1
        listener.changes.clear()
        server.listeners[-1].over.set()
        server.text, server.pages = "new", [[tool("one"), tool("two")]]
        may_acknowledge.set()
        await listener.hears(ListChanged(Kind.TOOLS))
        assert await tools(app, listener) == ["up__one", "up__two"]
        while not any(isinstance(change, ResourceUpdated) and change.uri == WATCHED for change in listener.changes):
            await listener.told.wait()
        assert await text(app, listener) == "new"
