"""A service behind a signed webhook, on loopback: checks signatures by itself, and answers as the test says."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.fakes.servers.web import serving

Json = dict[str, Any]
Answer = Callable[[Json], Awaitable[web.StreamResponse]]

SECRET = "sixteen characters or more"
TOLERANCE = 300
"""Seconds that a timestamp may be off (Standard Webhooks 1.0, "Verifying webhook authenticity")."""


@dataclass
class WebhookService:
    """`told` is what came with a good signature; what came with another is refused with 401, and counted."""

    answer: Answer
    url: str = ""
    secret: str = SECRET
    told: list[Json] = field(default_factory=list)
    unsigned: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if not self._is_signed(request, body):
            self.unsigned += 1
            return web.Response(status=401)
        self.told.append(json.loads(body))
        return await self.answer(self.told[-1])

    def _is_signed(self, request: web.Request, body: bytes) -> bool:
        id, timestamp = request.headers["webhook-id"], request.headers["webhook-timestamp"]
        signed = hmac.new(self.secret.encode(), f"{id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
        expected = f"v1,{base64.b64encode(signed).decode()}"
        is_fresh = abs(time.time() - int(timestamp)) < TOLERANCE
        return is_fresh and hmac.compare_digest(expected, request.headers["webhook-signature"])


@asynccontextmanager
async def webhook_service(answer: Answer) -> AsyncIterator[WebhookService]:
    service = WebhookService(answer)
    async with serving(service.handle, notices_hang_up=True) as service.url:
        yield service


async def decides(decision: str, **members: object) -> web.Response:
    return web.json_response({"decision": decision, **members})
