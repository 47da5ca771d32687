"""A service that makes vectors of texts, on loopback: a number for each group of words that mean the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.fakes.servers.web import serving

MEANINGS = (("car", "vehicle"), ("rain", "forecast", "umbrella"), ("mail", "letter"))
KEY = "a key of the service"

Respond = Callable[[dict[str, Any]], Awaitable[web.StreamResponse]]


def vector(text: str) -> list[float]:
    words = text.lower()
    return [0.1, *(float(sum(words.count(word) for word in group)) for group in MEANINGS)]


async def well(body: dict[str, Any]) -> web.StreamResponse:
    data = [{"index": number, "embedding": vector(text)} for number, text in enumerate(body["input"])]
    return web.json_response({"object": "list", "model": body["model"], "data": data[::-1]})


@dataclass
class FakeEmbeddings:
    """`asked` is what came with the right key; other requests are refused."""

    respond: Respond = well
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.Response(status=401)
        self.asked.append(body)
        return await self.respond(body)

    def settings(self, **more: object) -> dict[str, object]:
        return {"url": self.url, "model": "small", "key": KEY, "timeout": 60, "batch_timeout": 60, **more}


@asynccontextmanager
async def fake_embeddings(respond: Respond = well) -> AsyncIterator[FakeEmbeddings]:
    service = FakeEmbeddings(respond)
    async with serving(service.handle, notices_hang_up=True) as service.url:
        yield service
