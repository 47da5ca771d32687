"""A server of nothing but HTTP, and a client that says exactly what it is told to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import SocketStream

from mcproxy.http import server as http
from tests.timeouts import GUARD

PATIENCE = 60
BOUNDS = http.Bounds(max_body=100_000, idle=60, write_timeout=60, connections=100)


def refuse(status: int, sentence: str) -> http.Response:
    return http.Response(status, sentence.encode())


async def echo(request: http.Request) -> http.Response:
    """Accepts every request, and says what it was asked for."""
    request.remember("accepted", None)
    try:
        body = await request.body(PATIENCE)
    except http.BodyTooLarge:
        return http.Response(413)
    except http.BodyIncomplete:
        return http.Response(400, b"cut")
    return http.Response(200, b"%s %s %s" % (request.method.encode(), request.target.encode(), body))


@dataclass(frozen=True)
class Answer:
    status: int
    fields: dict[str, str]
    body: bytes


@dataclass
class Visitor:
    """One connection."""

    stream: SocketStream
    unread: bytes = field(default=b"", init=False)

    async def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            await self.stream.send(piece)

    async def ask(self, *pieces: bytes, body: bool = True) -> Answer:
        await self.say(*pieces)
        return await self.answer(body=body)

    async def answer(self, *, body: bool = True) -> Answer:
        head = await self._until(b"\r\n\r\n")
        start, *lines = head.decode().split("\r\n")[:-2]
        fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if not body or "content-length" not in fields:
            return Answer(int(start.split()[1]), fields, b"")
        return Answer(int(start.split()[1]), fields, await self._some(int(fields["content-length"])))

    async def chunk(self) -> bytes:
        size = int(await self._until(b"\r\n"), 16)
        data = await self._some(size + 2)
        return data[:-2]

    async def rest(self) -> bytes:
        """What comes until the server closes. Raises anyio.BrokenResourceError where it hangs up."""
        rest = self.unread
        while True:
            try:
                rest += await self.stream.receive()
            except anyio.EndOfStream:
                return rest

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self.unread:
            self.unread += await self.stream.receive()
        found, mark, self.unread = self.unread.partition(mark)
        return found + mark

    async def _some(self, size: int) -> bytes:
        while len(self.unread) < size:
            self.unread += await self.stream.receive()
        found, self.unread = self.unread[:size], self.unread[size:]
        return found


@dataclass
class Serving:
    server: http.Server
    port: int
    bounds: http.Bounds
    """In force; others may be put here."""

    @asynccontextmanager
    async def visited(self) -> AsyncIterator[Visitor]:
        async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
            yield Visitor(stream)


@asynccontextmanager
async def serving(handler: http.RequestHandler = echo, bounds: http.Bounds = BOUNDS) -> AsyncIterator[Serving]:
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            server = http.Server(handler, refuse, lambda: running.bounds)
            running = Serving(server, 0, bounds)
            await tasks.start(server.run)
            running.port = await server.listen("127.0.0.1", 0, None)
            yield running
            await server.close(0)
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def visiting(handler: http.RequestHandler = echo, bounds: http.Bounds = BOUNDS) -> AsyncIterator[Visitor]:
    async with serving(handler, bounds) as running, running.visited() as visitor:
        yield visitor


def post(body: bytes, *lines: bytes, target: bytes = b"/x", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = [b"POST %s HTTP/1.1" % target, b"Host: here", b"Content-Length: %d" % size, *lines]
    return b"\r\n".join([*head, b"", body])
