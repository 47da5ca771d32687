"""A client that speaks raw HTTP: what it sends and sees is what is on the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from mcproxy.protocol.sse import Event, EventDecoder
from tests.fakes.gateway import Served
from tests.timeouts import GUARD

BOTH = "application/json, text/event-stream"


def request(id: int | str, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def notification(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}}


def initialize(version: str = "2025-11-25", capabilities: dict[str, Any] | None = None) -> dict[str, Any]:
    client = {"name": "raw", "version": "0"}
    return request(
        0, "initialize", {"protocolVersion": version, "capabilities": capabilities or {}, "clientInfo": client}
    )


class EventReader:
    """The events of one response, one by one."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.comments = 0
        self._decoder = EventDecoder(1 << 26)
        self._events: list[Event] = []

    async def next(self) -> Event | None:
        """None at the end of the stream."""
        while not self._events:
            chunk = await self.response.content.readany()
            if not chunk:
                return None
            self.comments += chunk.count(b":\n\n")
            self._events += self._decoder.feed(chunk)
        return self._events.pop(0)

    async def message(self) -> dict[str, Any]:
        """The next event that has data, decoded."""
        while (event := await self.next()) is not None:
            if event.data:
                message: dict[str, Any] = json.loads(event.data)
                return message
        raise AssertionError("the stream ended")

    async def rest(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        while (event := await self.next()) is not None:
            if event.data:
                messages.append(json.loads(event.data))
        return messages


class RawClient:
    def __init__(self, served: Served, http: aiohttp.ClientSession, path: str = "/mcp") -> None:
        self.url = served.url + path
        self.http = http
        self.headers: dict[str, str] = {}

    async def open(self, version: str = "2025-11-25", capabilities: dict[str, Any] | None = None) -> dict[str, Any]:
        """Initialises a session, and uses it from now on."""
        async with self.post(initialize(version, capabilities)) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = json.loads(await response.read())
            self.headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
        self.headers["MCP-Protocol-Version"] = answer["result"]["protocolVersion"]
        await self.tell(notification("notifications/initialized"))
        return answer

    @asynccontextmanager
    async def post(
        self, message: object, *, accept: str | None = BOTH, **headers: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        sent = {"Content-Type": "application/json", **self.headers, **headers}
        if accept is not None:
            sent["Accept"] = accept
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        skip = ("Accept",) if accept is None else ()
        async with self.http.post(self.url, data=data, headers=sent, skip_auto_headers=skip) as response:
            yield response

    async def ask(self, message: object, **kwargs: Any) -> dict[str, Any]:
        """The JSON answer to a POST."""
        async with self.post(message, **kwargs) as response:
            assert response.content_type == "application/json", await response.text()
            answer: dict[str, Any] = json.loads(await response.read())
            return answer

    async def tell(self, message: object) -> int:
        async with self.post(message) as response:
            return response.status

    @asynccontextmanager
    async def listen(self, **headers: str) -> AsyncIterator[EventReader]:
        sent = {"Accept": "text/event-stream", **self.headers, **headers}
        async with self.http.get(self.url, headers=sent) as response:
            assert response.status == 200, await response.text()
            yield EventReader(response)


@asynccontextmanager
async def client_of(served: Served, path: str = "/mcp") -> AsyncIterator[RawClient]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=GUARD)) as http:
        yield RawClient(served, http, path)
