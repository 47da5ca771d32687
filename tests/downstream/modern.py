"""A client of the stateless era that speaks raw HTTP. Every message that it gets is judged by the official types."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.downstream.client import EventReader, RawClient, client_of
from tests.downstream.client import request as bare
from tests.fakes.gateway import Served
from tests.judge import Judge

VERSION = "2026-07-28"
PREFIX = "io.modelcontextprotocol"
ENVELOPE: dict[str, Any] = {f"{PREFIX}/protocolVersion": VERSION, f"{PREFIX}/clientCapabilities": {}}
SUBSCRIPTION = f"{PREFIX}/subscriptionId"


def request(
    id: int | str, method: str, params: dict[str, Any] | None = None, meta: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A request in its envelope, with `meta` beside it."""
    return bare(id, method, {**(params or {}), "_meta": {**ENVELOPE, **(meta or {})}})


def headers_of(message: dict[str, Any]) -> dict[str, str]:
    """What a conforming client sends with `message`, where its names are plain."""
    params = message["params"]
    name = params.get("name", params.get("uri"))
    named = {} if name is None else {"Mcp-Name": name}
    return {"MCP-Protocol-Version": VERSION, "Mcp-Method": message["method"], **named}


class JudgedEvents:
    def __init__(self, events: EventReader, judge: Judge) -> None:
        self.events = events
        self._judge = judge

    async def message(self) -> dict[str, Any]:
        message = await self.events.message()
        self._judge.received(message)
        return message

    async def rest(self) -> list[dict[str, Any]]:
        messages = await self.events.rest()
        self._judge.received(messages)
        return messages


class ModernClient:
    def __init__(self, raw: RawClient) -> None:
        self.raw = raw
        self.judge = Judge()

    @asynccontextmanager
    async def post(
        self, message: dict[str, Any], *, accept: str = "application/json, text/event-stream", **headers: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        self.judge.sent(message)
        async with self.raw.post(message, accept=accept, **{**headers_of(message), **headers}) as response:
            yield response

    @asynccontextmanager
    async def stream(self, message: dict[str, Any], **headers: str) -> AsyncIterator[JudgedEvents]:
        async with self.post(message, **headers) as response:
            assert response.content_type == "text/event-stream", await response.text()
            yield JudgedEvents(EventReader(response), self.judge)

    async def answer(self, message: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any]]:
        """The status, and the JSON answer."""
        async with self.post(message, **headers) as response:
            assert response.content_type == "application/json", await response.text()
            answer: dict[str, Any] = json.loads(await response.read())
            self.judge.received(answer)
            return response.status, answer

    async def result(self, message: dict[str, Any]) -> dict[str, Any]:
        status, answer = await self.answer(message)
        assert status == 200, answer
        result: dict[str, Any] = answer["result"]
        return result


@asynccontextmanager
async def modern_client_of(served: Served, path: str = "/mcp") -> AsyncIterator[ModernClient]:
    async with client_of(served, path) as raw:
        yield ModernClient(raw)
