"""A client with no SDK in it: every message as it came over the wire, and each one judged.

It says only what a test tells it to, answers the server's questions from a table, and keeps all that it hears.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp
import anyio
from anyio.abc import Process, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from mcproxy.protocol.eras import LATEST_HANDSHAKE
from mcproxy.protocol.sse import EventDecoder
from tests.judge import Json, Judge
from tests.timeouts import GUARD

CAPABILITIES: Json = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": True}}
MAX_MESSAGE = 64 * 2**20

Send = Callable[[Json], Awaitable[None]]


@dataclass
class RawClient:
    """`answers` are results by the method of the question; a question without one is refused."""

    send: Send
    tasks: TaskGroup
    judge: Judge = field(default_factory=Judge)
    answers: Mapping[str, Json] = field(default_factory=dict)
    heard: list[Json] = field(default_factory=list)
    """Every notification and question, in order."""
    _ids: count[int] = field(default_factory=lambda: count(1))
    _waiting: dict[object, tuple[anyio.Event, list[Json]]] = field(default_factory=dict)
    _news: anyio.Event = field(default_factory=anyio.Event)

    async def initialize(self, version: str = LATEST_HANDSHAKE, capabilities: Json | None = None) -> Json:
        """The handshake. Returns the server's result."""
        params = {
            "protocolVersion": version,
            "capabilities": CAPABILITIES if capabilities is None else capabilities,
            "clientInfo": {"name": "raw", "version": "1"},
        }
        result = await self.result("initialize", params)
        await self.notify("notifications/initialized")
        return result

    async def request(self, method: str, params: Json | None = None, *, id: object = None) -> Json:
        """The whole answer: `result` or `error` and what else there is; empty where the connection ended first."""
        id = next(self._ids) if id is None else id
        event, box = anyio.Event(), list[Json]()
        self._waiting[id] = event, box
        await self.say({"id": id, "method": method, **({} if params is None else {"params": params})})
        await event.wait()
        return box[0] if box else {}

    async def result(self, method: str, params: Json | None = None) -> Json:
        answer = await self.request(method, params)
        assert "result" in answer, answer
        result: Json = answer["result"]
        return result

    async def call(self, tool: str, arguments: Json | None = None, **meta: object) -> Json:
        """The whole answer to `tools/call`; `meta` goes into `_meta`."""
        params = {"name": tool, "arguments": arguments or {}, **({"_meta": meta} if meta else {})}
        return await self.request("tools/call", params)

    async def notify(self, method: str, params: Json | None = None) -> None:
        await self.say({"method": method, **({} if params is None else {"params": params})})

    async def say(self, message: Json) -> None:
        message = {"jsonrpc": "2.0", **message}
        self.judge.sent(message)
        await self.send(message)

    def all_of(self, method: str) -> list[Json]:
        """The params of every `method` heard so far."""
        return [message.get("params", {}) for message in self.heard if message["method"] == method]

    async def hears(self, method: str, at_least: int = 1) -> list[Json]:
        while len(found := self.all_of(method)) < at_least:
            await self._news.wait()
        return found

    async def take(self, message: Json) -> None:
        """What the transport read."""
        self.judge.received(message)
        if "method" not in message:
            event, box = self._waiting.pop(message["id"])
            box.append(message)
            event.set()
            return
        self.heard.append(message)
        self._news.set()
        self._news = anyio.Event()
        if "id" in message:
            self.tasks.start_soon(self._answer, message)

    def cut_off(self, id: object) -> None:
        """The connection ended before the answer to `id` came: its caller gets a message with neither part."""
        if id in self._waiting:
            self._waiting.pop(id)[0].set()

    async def _answer(self, question: Json) -> None:
        method = question["method"]
        known = {"result": {}} if method == "ping" else {"error": {"code": -32601, "message": f"no {method}"}}
        answer = {"result": self.answers[method]} if method in self.answers else known
        await self.say({"id": question["id"], **answer})


@dataclass
class ParentClient(RawClient):
    """A client that started its server."""

    child: Process = field(kw_only=True)


@asynccontextmanager
async def over_http(url: str, **known: Any) -> AsyncIterator[RawClient]:
    """A client of Streamable HTTP. After `initialize` it listens on the GET stream too."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
        async with anyio.create_task_group() as tasks:
            wire = _HttpWire(http, url, tasks)
            wire.client = RawClient(wire.send, tasks, **known)
            yield wire.client
            tasks.cancel_scope.cancel()
        if wire.session is not None:
            with anyio.move_on_after(GUARD), suppress(aiohttp.ClientError):
                await http.delete(url, headers=wire.headers)


@dataclass
class _HttpWire:
    http: aiohttp.ClientSession
    url: str
    tasks: TaskGroup
    session: str | None = None
    client: RawClient = field(init=False)

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json, text/event-stream"}
        if self.session is not None:
            headers |= {"Mcp-Session-Id": self.session}
        if self.client.judge.version is not None:
            headers |= {"MCP-Protocol-Version": self.client.judge.version}
        return headers

    async def send(self, message: Json) -> None:
        opening = message.get("method") == "notifications/initialized"
        if "id" in message and "method" in message:
            self.tasks.start_soon(self._post, message)
        else:
            await self._post(message)
        if opening:
            await self.tasks.start(self._listen)

    async def _post(self, message: Json) -> None:
        try:
            async with self.http.post(self.url, json=message, headers=self.headers) as response:
                self.session = response.headers.get("Mcp-Session-Id", self.session)
                if response.content_type == "text/event-stream":
                    await self._read(response)
                elif response.status != 202:
                    await self.client.take(await response.json())
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError):
            self.client.cut_off(message.get("id"))

    async def _listen(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        headers = {**self.headers, "Accept": "text/event-stream"}
        async with self.http.get(self.url, headers=headers) as response:
            task_status.started()
            if response.status == 200:
                with suppress(aiohttp.ClientPayloadError):
                    await self._read(response)

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        decoder = EventDecoder(MAX_MESSAGE)
        async for chunk in response.content.iter_any():
            for event in decoder.feed(chunk):
                if event.data:
                    await self.client.take(json.loads(event.data))


@asynccontextmanager
async def over_stdio(command: Sequence[str], **known: Any) -> AsyncIterator[ParentClient]:
    """A client of a child that speaks over stdio; leaving closes its stdin and waits for its end."""
    async with await anyio.open_process(command, stderr=None) as child, anyio.create_task_group() as tasks:
        assert child.stdin is not None
        assert child.stdout is not None
        stdin, lines = child.stdin, BufferedByteReceiveStream(child.stdout)

        async def send(message: Json) -> None:
            await stdin.send(json.dumps(message).encode() + b"\n")

        async def read(client: RawClient) -> None:
            with suppress(anyio.IncompleteRead, anyio.EndOfStream):
                while True:
                    await client.take(json.loads(await lines.receive_until(b"\n", MAX_MESSAGE)))

        client = ParentClient(send, tasks, **known, child=child)
        tasks.start_soon(read, client)
        try:
            yield client
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(GUARD) as scope:
                await stdin.aclose()
                await child.wait()
            if scope.cancelled_caught:
                child.kill()
        tasks.cancel_scope.cancel()
