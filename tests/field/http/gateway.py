"""A gateway in front of one odd server, and a client that validates every message that it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from mcproxy.app import App, running
from mcproxy.call.upstreams import LinkState, UpstreamStatus
from mcproxy.downstream.front.listener import serve_http
from mcproxy.settings import Settings
from tests.fakes.clients.raw import RawClient, over_http
from tests.field.http.server import GREETING, RESOURCE, Json, Server
from tests.timeouts import GUARD

TRIED = (LinkState.READY, LinkState.BACKING_OFF, LinkState.RETIRED)


@dataclass
class Played:
    """A client that is connected to the gateway."""

    app: App
    client: RawClient
    _news: list[anyio.Event]

    @property
    def status(self) -> UpstreamStatus:
        return self.app.fleet.upstreams["up"].status

    @property
    def oddities(self) -> str:
        return "; ".join(self.status.oddities)

    async def until(self, *states: LinkState) -> UpstreamStatus:
        """The status once the upstream is in one of these states."""
        while self.status.state not in states:
            await self._news[0].wait()
        return self.status

    async def tool(self) -> str:
        """The name of the only tool, once it is listed."""
        status = await self.until(*TRIED)
        assert status.state is LinkState.READY, status.error
        listed = await self.client.result("tools/list")
        names = [tool["name"] for tool in listed["tools"]]
        assert len(names) == 1, names
        name: str = names[0]
        return name

    async def call(self, text: str) -> Json:
        return await self.client.call(await self.tool(), {"text": text})

    async def works(self) -> None:
        """The tool is listed, two calls give the exact result, the resource is read."""
        name = await self.tool()
        for text in ("plain", "Ünïcode 日本 \U0001f600"):
            answer = await self.client.call(name, {"text": text})
            assert answer.get("result", answer) == {"content": [{"type": "text", "text": text}]}
        await self.reads()

    async def reads(self, text: str = GREETING) -> None:
        listed = (await self.client.result("resources/list"))["resources"]
        read = await self.client.result("resources/read", {"uri": listed[0]["uri"]})
        assert read["contents"][0]["text"] == text
        assert RESOURCE["name"] in listed[0]["name"]


@asynccontextmanager
async def played(server: Server, **upstream: Any) -> AsyncIterator[Played]:
    """Runs the server, a gateway in front of it, and a client of the gateway."""
    with anyio.fail_after(GUARD):
        async with server.running(), facing(server.url, **upstream) as play:
            yield play


@asynccontextmanager
async def facing(url: str, **upstream: Any) -> AsyncIterator[Played]:
    """A gateway in front of the server at `url`, and a client of it."""
    news = [anyio.Event()]

    def note(_: object) -> None:
        news[0].set()
        news[0] = anyio.Event()

    timeouts = {"connect": 20, "idle": 10, "list": 10, "probe": 3, **upstream.pop("timeouts", {})}
    spec = {"name": "up", "prefix": "up", "url": url, "timeouts": timeouts, **upstream}
    settings = Settings.model_validate({"proxy": {"port": 0}, "upstreams": [spec]})
    urls: list[str] = []
    up, stop = anyio.Event(), anyio.Event()

    def started(at: str) -> None:
        urls.append(at)
        up.set()

    async with running(settings, on_event=note) as app, anyio.create_task_group() as tasks:

        async def serve() -> None:
            await serve_http(app.context, stop=stop, started=started)

        tasks.start_soon(serve)
        await up.wait()
        async with over_http(f"{urls[0]}/mcp") as client:
            await client.initialize()
            yield Played(app, client, news)
        stop.set()
