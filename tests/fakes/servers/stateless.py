"""A server of the stateless era over HTTP on loopback, whose every answer a test can script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from aiohttp import web

from tests.fakes.servers.web import Message, error, event, result

Tool = Callable[["FakeStateless", web.Request, Message], Awaitable[web.StreamResponse]]
Discover = Callable[[Message], web.Response]

EVERYTHING: Message = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
}


def notification(method: str, **params: Any) -> Message:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def complete(request: Message, **members: Any) -> Message:
    return {"jsonrpc": "2.0", "id": request["id"], "result": {"resultType": "complete", **members}}


async def echo(_: FakeStateless, __: web.Request, message: Message) -> web.StreamResponse:
    return web.json_response(result(message, message["params"].get("arguments")))


@dataclass
class Listener:
    """One open `subscriptions/listen`."""

    id: Any
    filter: Message
    response: web.StreamResponse
    over: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)
    """The client hung up."""

    async def tell(self, method: str, **params: Any) -> None:
        meta = {"io.modelcontextprotocol/subscriptionId": self.id}
        await self.response.write(event(notification(method, **params, _meta=meta)))

    async def acknowledge(self, **changed: Any) -> None:
        await self.tell("notifications/subscriptions/acknowledged", notifications={**self.filter, **changed})

    async def end(self) -> None:
        """Ends gracefully."""
        await self.response.write(event({"jsonrpc": "2.0", "id": self.id, "result": {"resultType": "complete"}}))
        self.over.set()


@dataclass
class FakeStateless:
    """`tools` answer `tools/call` by name, `pages` are its list of tools. Streams of changes come to `listeners`."""

    tools: dict[str, Tool] = field(default_factory=lambda: {"echo": echo})
    pages: list[list[Message]] = field(default_factory=lambda: [[]])
    capabilities: Message = field(default_factory=lambda: {"tools": {}})
    discover: Discover | None = None
    acknowledges: Callable[[Listener], Awaitable[None]] = Listener.acknowledge
    refuses_to_listen: web.Response | None = None
    text: str | None = None
    """The text of every resource; there is none without it."""
    heard: list[Message] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)
    more: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        self.heard.append(message)
        self.headers.append(dict(request.headers))
        self.stir()
        match message["method"]:
            case "server/discover":
                return self.discover(message) if self.discover is not None else self._discovered(message)
            case "tools/list":
                return self._page(message)
            case "tools/call":
                return await self.tools[message["params"]["name"]](self, request, message)
            case "resources/read" if self.text is not None:
                contents = [{"uri": message["params"]["uri"], "text": self.text}]
                return web.json_response(complete(message, contents=contents, ttlMs=3_600_000, cacheScope="public"))
            case "subscriptions/listen":
                return self.refuses_to_listen or await self._listen(request, message)
            case method:
                return web.json_response(error(-32601, f"Method not found: {method}", message["id"]), status=404)

    def stir(self) -> None:
        self.more.set()
        self.more = anyio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self.more.wait()

    def sent(self, method: str) -> list[Message]:
        return [message for message in self.heard if message["method"] == method]

    def _discovered(self, message: Message) -> web.Response:
        info = {"io.modelcontextprotocol/serverInfo": {"name": "fake", "version": "1"}}
        return web.json_response(
            complete(
                message,
                supportedVersions=["2026-07-28"],
                capabilities=self.capabilities,
                instructions="be kind",
                _meta=info,
            )
        )

    def _page(self, message: Message) -> web.Response:
        number = int(message["params"].get("cursor", 0))
        more = {"nextCursor": str(number + 1)} if number + 1 < len(self.pages) else {}
        return web.json_response(complete(message, tools=self.pages[number], **more))

    async def _listen(self, request: web.Request, message: Message) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        listener = Listener(message["id"], message["params"]["notifications"], response)
        await self.acknowledges(listener)
        self.listeners.append(listener)
        self.stir()
        try:
            await listener.over.wait()
        except anyio.get_cancelled_exc_class():
            listener.gone.set()
            raise
        return response
