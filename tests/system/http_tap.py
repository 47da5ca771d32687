"""A tap between a client and a server over HTTP: everything passes unchanged, and is told to a judge first."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import ClientConnectionResetError, web

from mcproxy.protocol.sse import EventDecoder
from tests.judge import Judge, Violation

MAX_MESSAGE = 64 * 2**20
FRAMING = {"Content-Length", "Transfer-Encoding", "Connection"}


@dataclass
class HttpTap:
    """`url` stands for the base URL of the server behind. `faults` are what the judge found, in order."""

    judge: Judge
    http: aiohttp.ClientSession
    target: str
    url: str = ""
    faults: list[Violation] = field(default_factory=list)

    async def forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if body:
            self.judge.sent(json.loads(body))
        headers = {key: value for key, value in request.headers.items() if key not in ("Host", "Accept-Encoding")}
        url = self.target + request.path_qs
        async with self.http.request(request.method, url, data=body or None, headers=headers) as answer:
            response = web.StreamResponse(status=answer.status)
            response.headers.update((key, value) for key, value in answer.headers.items() if key not in FRAMING)
            await response.prepare(request)
            # A client that left has no use for the rest.
            with suppress(ClientConnectionResetError):
                if answer.content_type == "text/event-stream":
                    await self._pass_events(answer, response)
                else:
                    await self._pass_body(answer, response)
                await response.write_eof()
            return response

    async def _pass_events(self, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        decoder = EventDecoder(MAX_MESSAGE)
        async for chunk in answer.content.iter_any():
            for event in decoder.feed(chunk):
                if event.event == "message" and event.data:
                    self._judge(json.loads(event.data))
            await response.write(chunk)

    async def _pass_body(self, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        body = await answer.read()
        if answer.content_type == "application/json":
            self._judge(json.loads(body))
        await response.write(body)

    def _judge(self, message: Any) -> None:
        try:
            self.judge.received(message)
        except Violation as fault:
            self.faults.append(fault)


@asynccontextmanager
async def tapped(target: str, judge: Judge) -> AsyncIterator[HttpTap]:
    """A tap in front of the server whose base URL is `target`."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, headers={"Accept-Encoding": "identity"}) as http:
        tap = HttpTap(judge, http, target)
        app = web.Application(client_max_size=MAX_MESSAGE)
        app.router.add_route("*", "/{path:.*}", tap.forward)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            tap.url = f"http://{host}:{port}"
            yield tap
        finally:
            await runner.cleanup()
