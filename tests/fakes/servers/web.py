"""Servers over HTTP on loopback, whose every answer a test can script. Real sockets, aiohttp's server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from aiohttp import web

Message = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Tool = Callable[["FakeStreamable", web.Request, Message], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, *, notices_hang_up: bool = False) -> AsyncIterator[str]:
    """A server on a free port that gives every request to `handler`, and cancels it if told to; its base URL."""
    server = web.Server(handler, handler_cancellation=notices_hang_up)  # type: ignore[arg-type, unused-ignore]  # a handler is called with BaseRequest
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield site.name
    finally:
        await runner.cleanup()


def result(request: Message, value: Any) -> Message:
    return {"jsonrpc": "2.0", "id": request["id"], "result": {"content": [], "structuredContent": {"value": value}}}


def error(code: int, message: str, id: Any = None) -> Message:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}


def event(message: Message, **fields: object) -> bytes:
    head = "".join(f"{name}: {value}\n" for name, value in fields.items())
    return f"{head}data: {json.dumps(message)}\n\n".encode()


async def events(request: web.Request, *chunks: bytes) -> web.StreamResponse:
    """An event stream that holds `chunks`, and ends."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    await response.write_eof()
    return response


async def echo(_: FakeStreamable, __: web.Request, message: Message) -> web.StreamResponse:
    return web.json_response(result(message, message["params"].get("arguments")))


async def pong(_: web.Request, message: Message) -> web.StreamResponse:
    return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": {}})


@dataclass
class FakeStreamable:
    """A server of Streamable HTTP with sessions. `tools` answer `tools/call` by name; `on_get` answers GET."""

    tools: dict[str, Tool] = field(default_factory=lambda: {"echo": echo})
    on_get: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
    session_lost: Callable[[Message | None], web.Response] = lambda _: web.json_response(
        error(-32001, "Session not found"), status=404
    )
    on_ping: Callable[[web.Request, Message], Awaitable[web.StreamResponse]] = pong
    initialize_as_events: bool = False
    sessions: set[str] = field(default_factory=set)
    deleted: list[str] = field(default_factory=list)
    heard: list[Message] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    more: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, dict(request.headers)))
        match request.method:
            case "POST":
                return await self._post(request, await request.json())
            case "GET" if self.on_get is not None:
                return await self.on_get(request)
            case "DELETE":
                self.deleted.append(request.headers["Mcp-Session-Id"])
                return web.Response()
            case _:
                return web.Response(status=405)

    async def _post(self, request: web.Request, message: Message) -> web.StreamResponse:
        self.heard.append(message)
        self.more.set()
        self.more = anyio.Event()
        method = message.get("method")
        if method == "initialize":
            return await self._initialize(request, message)
        if request.headers.get("Mcp-Session-Id") not in self.sessions:
            return self.session_lost(message)
        if method == "tools/call":
            return await self.tools[message["params"]["name"]](self, request, message)
        if method == "ping":
            return await self.on_ping(request, message)
        return web.Response(status=202)

    async def _initialize(self, request: web.Request, message: Message) -> web.StreamResponse:
        session = f"session-{len([m for m in self.heard if m.get('method') == 'initialize'])}"
        self.sessions.add(session)
        capabilities: Message = {"tools": {}}
        body = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {"name": "f"}}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": body}
        if not self.initialize_as_events:
            return web.json_response(answer, headers={"Mcp-Session-Id": session})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Mcp-Session-Id": session})
        await response.prepare(request)
        await response.write(event(answer))
        return response

    async def until(self, method: str) -> Message:
        """Waits for a message of `method`, or an answer where that is the empty text."""
        while True:
            for message in self.heard:
                if message.get("method", "") == method:
                    return message
            await self.more.wait()

    def count(self, method: str) -> int:
        return len([message for message in self.heard if message.get("method") == method])


@dataclass
class FakeSse:
    """A server of HTTP+SSE: GET opens the stream, `/messages` takes what is said. POST to its URL is refused."""

    endpoint: str = "/messages"
    refusal: Callable[[Message], Message] | None = None
    """Answers each call in the response to its POST, with 404."""
    never_accepts: bool = False
    """Answers calls on the stream, and never responds to their POSTs."""
    heard: list[Message] = field(default_factory=list)
    streams: list[web.StreamResponse] = field(default_factory=list)
    over: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return await self._stream(request)
        if request.path != "/messages":
            return web.Response(status=405)
        message = await request.json()
        self.heard.append(message)
        if self.refusal is not None and message["method"] == "tools/call":
            return web.json_response(self.refusal(message), status=404)
        if "id" in message:
            await self._answer(message)
            if self.never_accepts and message["method"] == "tools/call":
                await anyio.sleep_forever()
        return web.Response(status=202, text="Accepted")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"event: endpoint\ndata: {self.endpoint}\n\n".encode())
        self.streams.append(response)
        await self.over.wait()
        return response

    async def _answer(self, message: Message) -> None:
        if message["method"] == "initialize":
            body = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": {"name": "s"}}
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": body}
        elif message["params"]["name"] == "hang up":
            self.over.set()
            return
        else:
            answer = result(message, message["params"]["arguments"])
        await self.streams[-1].write(event(answer))
