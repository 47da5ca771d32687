"""A server of 2025-11-25 over HTTP that all replicas share, in the test's own loop: it counts what it executes.

Tools: `count` has a side effect, `hold` runs until the test lets it go, `ask` elicits a form in the middle of the call.
It has one resource, and tells every session that subscribed of each change.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import web

from tests.fakes.servers.web import Message, event, serving

URI = "shared:memo"
TOOLS = [
    {"name": name, "inputSchema": {"type": "object", "properties": {"key": {"type": "string"}}}}
    for name in ("count", "hold", "ask")
]
FORM = {
    "mode": "form",
    "message": "Who are you?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}


@dataclass
class _Session:
    queue: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    subscribed: bool = False
    answers: dict[object, asyncio.Future[Any]] = field(default_factory=dict)


@dataclass
class SharedUpstream:
    url: str = ""
    executed: Counter[str] = field(default_factory=Counter)
    """Calls of tools with a key, by that key."""
    text: str = "0"
    """What the resource holds."""
    held: int = 0
    """Calls of `hold` that run."""
    _sessions: dict[str, _Session] = field(default_factory=dict)
    _ids: Any = field(default_factory=lambda: count(1))
    _go: asyncio.Event = field(default_factory=asyncio.Event)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def subscribers(self) -> int:
        return sum(session.subscribed for session in self._sessions.values())

    def change(self, text: str) -> None:
        """Changes the resource, and tells everybody who subscribed."""
        self.text = text
        message = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": URI}}
        for session in self._sessions.values():
            if session.subscribed:
                session.queue.put_nowait(message)

    def let_go(self) -> None:
        """Ends the calls of `hold`, those to come as well."""
        self._go.set()

    async def holds(self, calls: int) -> None:
        """Returns once so many calls of `hold` run."""
        while self.held < calls:
            self._news.clear()
            await self._news.wait()

    async def wait_subscribed(self, sessions: int) -> None:
        while self.subscribers < sessions:
            self._news.clear()
            await self._news.wait()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        session = self._sessions.get(request.headers.get("Mcp-Session-Id", ""))
        if request.method == "DELETE":
            self._sessions.pop(request.headers.get("Mcp-Session-Id", ""), None)
            return web.Response(status=204)
        if request.method == "GET":
            return web.Response(status=404) if session is None else await self._listen(request, session)
        message = await request.json()
        if message.get("method") == "initialize":
            return self._open(message)
        if session is None:
            return web.Response(status=404)
        if "method" not in message:
            session.answers.pop(message["id"]).set_result(message.get("result"))
        if "method" not in message or "id" not in message:
            return web.Response(status=202)
        if message["method"] == "tools/call":
            return await self._call(request, session, message)
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": self._answer(session, message)})

    def _open(self, message: Message) -> web.Response:
        name = f"s{next(self._ids)}"
        self._sessions[name] = _Session()
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "resources": {"subscribe": True}},
            "serverInfo": {"name": "shared", "version": "1"},
        }
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return web.json_response(answer, headers={"Mcp-Session-Id": name})

    def _answer(self, session: _Session, message: Message) -> Message:
        match message["method"]:
            case "tools/list":
                return {"tools": TOOLS}
            case "resources/list":
                return {"resources": [{"uri": URI, "name": "memo"}]}
            case "resources/templates/list":
                return {"resourceTemplates": []}
            case "resources/read":
                return {"contents": [{"uri": URI, "text": self.text}]}
            case "resources/subscribe" | "resources/unsubscribe":
                session.subscribed = message["method"] == "resources/subscribe"
                self._news.set()
        return {}

    async def _call(self, request: web.Request, session: _Session, message: Message) -> web.StreamResponse:
        arguments = message["params"].get("arguments", {})
        self.executed[arguments.get("key", "")] += 1
        match message["params"]["name"]:
            case "hold":
                self.held += 1
                self._news.set()
                await self._go.wait()
            case "ask":
                return await self._ask(request, session, message)
        return web.json_response(_said(message, arguments.get("key", "")))

    async def _ask(self, request: web.Request, session: _Session, message: Message) -> web.StreamResponse:
        id = next(self._ids)
        session.answers[id] = asyncio.get_running_loop().create_future()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": FORM}))
        answer = await session.answers[id]
        await response.write(event(_said(message, json.dumps(answer, sort_keys=True))))
        await response.write_eof()
        return response

    async def _listen(self, request: web.Request, session: _Session) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(event(await session.queue.get()))
        return response


def _said(message: Message, text: str) -> Message:
    return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": text}]}}


@asynccontextmanager
async def shared_upstream() -> AsyncIterator[SharedUpstream]:
    upstream = SharedUpstream()
    async with serving(upstream.handle, notices_hang_up=True) as url:
        upstream.url = f"{url}/mcp"
        yield upstream
