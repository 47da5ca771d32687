"""The upstream of chaos runs over Streamable HTTP: `python -m tests.fuzz.chaos.web ERA JOURNAL PORT`.

A call is answered as an event stream unless it is a plain echo. SIGUSR1 closes all connections at once.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import uuid
from pathlib import Path

from aiohttp import web

from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import METHOD_NOT_FOUND
from tests.fuzz.chaos.server import Channel, Json, Send, Server, acknowledge, listen_channel


class HttpServer:
    """Streamable HTTP: a call is answered as an event stream unless it is a plain echo."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sessions: dict[str, Channel | None] = {}
        self._subscribed: dict[str, set[str]] = {}
        self._transports: set[asyncio.Transport] = set()

    def close_connections(self) -> None:
        for transport in list(self._transports):
            transport.abort()
        self._transports.clear()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        if isinstance(request.transport, asyncio.Transport):
            self._transports.add(request.transport)
            self._transports = {transport for transport in self._transports if not transport.is_closing()}
        session = request.headers.get("Mcp-Session-Id", "")
        if request.method == "POST":
            message = await request.json()
            if message.get("method") == "subscriptions/listen":
                return await self._listen(request, message)
            return await self._answer(request, message, session)
        if session not in self._sessions or self._server.era is Era.STATELESS:
            return web.Response(status=405 if not session else 404)
        if request.method == "DELETE":
            del self._sessions[session]
            return web.Response()
        response, send = await _stream(request)
        channel = Channel(send, uris=self._subscribed[session])
        await self._hold(response, channel)
        return response

    async def _listen(self, request: web.BaseRequest, message: Json) -> web.StreamResponse:
        response, send = await _stream(request)
        channel = listen_channel(message, send)
        await acknowledge(channel, message)
        await self._hold(response, channel)
        return response

    async def _hold(self, response: web.StreamResponse, channel: Channel) -> None:
        """Keeps a stream open until its client hangs up."""
        self._server.channels.add(channel)
        try:
            while True:
                await asyncio.sleep(1)
                await response.write(b": \n\n")
        finally:
            self._server.channels.discard(channel)

    async def _answer(self, request: web.BaseRequest, message: Json, session: str) -> web.StreamResponse:
        handshake = self._server.era is Era.HANDSHAKE
        headers: dict[str, str] = {}
        if message.get("method") == "initialize" and handshake:
            session = uuid.uuid4().hex
            self._sessions[session] = None
            self._subscribed[session] = set()
            headers = {"Mcp-Session-Id": session}
        elif handshake and session not in self._sessions:
            error = {"code": -32001, "message": "Session not found"}
            return web.json_response({"jsonrpc": "2.0", "id": message.get("id"), "error": error}, status=404)
        channel = None
        if handshake:
            channel = Channel(_nowhere, uris=self._subscribed[session])
        if "id" not in message or "method" not in message:
            await self._server.take(message, _nowhere, None, session)
            return web.Response(status=202)
        name = (message.get("params") or {}).get("name", "echo")
        if name == "echo" or message["method"] != "tools/call":
            box: list[Json] = []

            async def keep(answer: Json) -> None:
                box.append(answer)

            await self._server.take(message, keep, channel, session)
            status = 404 if box[0].get("error", {}).get("code") == METHOD_NOT_FOUND else 200
            return web.json_response(box[0], headers=headers, status=status)
        response, send = await _stream(request)
        task = self._server.take(message, send, channel, session)
        try:
            await task
        finally:
            task.cancel()
        await response.write_eof()
        return response


async def _nowhere(message: Json) -> None:
    del message


async def _stream(request: web.BaseRequest) -> tuple[web.StreamResponse, Send]:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)

    async def send(message: Json) -> None:
        await response.write(f"data: {json.dumps(message)}\n\n".encode())

    return response, send


async def over_http(server: Server, port: int) -> None:
    http = HttpServer(server)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, http.close_connections)
    runner = web.ServerRunner(web.Server(http, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    await asyncio.Event().wait()


def main(era: str, journal: str, port: str) -> None:
    async def serve() -> None:
        await over_http(Server(Era(era), Path(journal)), int(port))

    asyncio.run(serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
