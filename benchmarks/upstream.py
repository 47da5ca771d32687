"""The upstream of the benchmark over HTTP: `python -m benchmarks.upstream PORT [TOOLS]`.

HTTP/1.1 as far as the proxies under test speak it: kept-alive, bodies with a length. One task per nothing: each
request is answered in the callback that read it, so that the proxies and not this are what is measured.
A body posted to /announce names a resource that changed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final, assert_never, cast

import uvloop

from benchmarks.answers import Listening, Silence, Stepwise, Watching, Whole, read, reply, updated

ANNOUNCE: Final = b"POST /announce "
_JSON: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_OPENED: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: %b\r\nContent-Length: %d\r\n\r\n"
)
_EVENTS: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_EMPTY: Final = b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n"
_END: Final = b"0\r\n\r\n"


class Streams:
    """Who listens, and to what."""

    def __init__(self) -> None:
        self._of_sessions: dict[bytes, Connection] = {}
        self._watched: dict[str, set[bytes]] = {}
        self._listening: dict[Connection, Listening] = {}

    def open(self, session: bytes, connection: Connection) -> None:
        self._of_sessions[session] = connection

    def listen(self, connection: Connection, listening: Listening) -> None:
        self._listening[connection] = listening

    def watch(self, session: bytes, watching: Watching) -> None:
        watchers = self._watched.setdefault(watching.uri, set())
        (watchers.add if watching.wanted else watchers.discard)(session)

    def leave(self, connection: Connection) -> None:
        self._listening.pop(connection, None)
        for session in [session for session, stream in self._of_sessions.items() if stream is connection]:
            del self._of_sessions[session]

    def announce(self, uri: str) -> None:
        for session in self._watched.get(uri, ()):
            if session in self._of_sessions:
                self._of_sessions[session].write_event(updated(uri))
        for connection, listening in self._listening.items():
            if uri in listening.uris:
                connection.write_event(updated(uri, listening.tag))


class Connection(asyncio.Protocol):
    def __init__(self, streams: Streams, tools: int) -> None:
        self._streams = streams
        self._tools = tools
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of it.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._streams.leave(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:head_end]
            body_start = head_end + 4
            body_end = body_start + int(field(head, b"content-length") or 0)
            if len(self._buffer) < body_end:
                return
            body, self._buffer = self._buffer[body_start:body_end], self._buffer[body_end:]
            self._serve(head, body)

    def write_event(self, body: bytes) -> None:
        self._transport.write(chunk(b"data: %b\n\n" % body))

    def _serve(self, head: bytes, body: bytes) -> None:
        if head.startswith(ANNOUNCE):
            self._streams.announce(body.decode())
            self._transport.write(_EMPTY % b"204 No Content")
        elif head.startswith(b"POST "):
            self._answer(head, body)
        elif head.startswith(b"GET "):
            self._transport.write(_EVENTS)
            self._streams.open(field(head, b"mcp-session-id"), self)
        else:
            self._transport.write(_EMPTY % b"200 OK")

    def _answer(self, head: bytes, body: bytes) -> None:
        message = read(body)
        match reply(message, self._tools):
            case Whole(body=said) if message.method == "initialize":
                self._transport.write(_OPENED % (os.urandom(16).hex().encode(), len(said)) + said)
            case Whole(body=said):
                self._transport.write(_JSON % len(said) + said)
            case Stepwise(bodies=bodies):
                self._transport.write(_EVENTS)
                for said in bodies:
                    self.write_event(said)
                self._transport.write(_END)
            case Listening() as listening:
                self._transport.write(_EVENTS)
                self.write_event(listening.first)
                self._streams.listen(self, listening)
            case Watching(body=said) as watching:
                self._streams.watch(field(head, b"mcp-session-id"), watching)
                self._transport.write(_JSON % len(said) + said)
            case Silence():
                self._transport.write(_EMPTY % b"202 Accepted")
            case other:
                assert_never(other)


def field(head: bytes, name: bytes) -> bytes:
    """The value of a header; empty where there is none. `name` is in lower case, and so is what is returned."""
    head = head.lower()
    start = head.find(b"\r\n%b:" % name)
    if start < 0:
        return b""
    start += len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(port: int, tools: int) -> None:
    streams = Streams()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(streams, tools), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
