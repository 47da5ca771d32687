"""Servers whose event streams are odd."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.field.http.gateway import played
from tests.field.http.server import EVENTS, Asked, Json, Reply, Server

pytestmark = pytest.mark.anyio


class Streaming(Server):
    content_type = EVENTS

    def stream(self, body: bytes) -> bytes:
        return b"event: message\ndata: " + body + b"\n\n"

    def answered(self, message: Json, asked: Asked) -> Reply:
        return Reply(200, self.stream(self.dumps(message)), [("Content-Type", self.content_type)])


class Crlf(Streaming):
    def stream(self, body: bytes) -> bytes:
        return super().stream(body).replace(b"\n", b"\r\n")


class Cr(Streaming):
    def stream(self, body: bytes) -> bytes:
        return super().stream(body).replace(b"\n", b"\r")


class Chunked(Streaming):
    """Each byte in a chunk of its own."""

    trailer = b""

    def answered(self, message: Json, asked: Asked) -> Reply:
        reply = super().answered(message, asked)
        reply.fields.append(("Transfer-Encoding", "chunked"))
        return reply

    async def send(self, reply: Reply, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if reply.named("transfer-encoding") is None:
            await super().send(reply, asked, writer)
            return
        writer.write(self.head(reply))
        for byte in reply.body or b"":
            writer.write(b"1\r\n" + bytes((byte,)) + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)
        self.end(writer)

    def end(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"0\r\n" + self.trailer + b"\r\n")


class CrlfBytewise(Chunked):
    def stream(self, body: bytes) -> bytes:
        return super().stream(body).replace(b"\n", b"\r\n")


class Trailers(Chunked):
    trailer = b"X-Sum: abc\r\n"


class WithoutBlankLine(Streaming):
    def stream(self, body: bytes) -> bytes:
        return super().stream(body)[:-1]


class WithoutLineEnd(Streaming):
    def stream(self, body: bytes) -> bytes:
        return super().stream(body)[:-2]


class ChunkedWithoutLineEnd(Chunked):
    def stream(self, body: bytes) -> bytes:
        return super().stream(body)[:-2]


class Comments(Streaming):
    def stream(self, body: bytes) -> bytes:
        return b": hi\n\n: hi\nevent: message\n: within\ndata: " + body + b"\n: after\n\n: bye\n\n"


class Retry(Streaming):
    def stream(self, body: bytes) -> bytes:
        return b"retry: 3000\n\nid: 1\nretry: 10\nevent: message\ndata: " + body + b"\n\n"


class NoSpace(Streaming):
    def stream(self, body: bytes) -> bytes:
        return b"data:" + body + b"\n\n"


class Pretty(Streaming):
    def dumps(self, message: Json) -> bytes:
        return json.dumps(message, indent=2).encode()

    def stream(self, body: bytes) -> bytes:
        return b"".join(b"data: " + line + b"\n" for line in body.split(b"\n")) + b"\n"


class Done(Streaming):
    def stream(self, body: bytes) -> bytes:
        return b"data: [DONE]\n\n" + super().stream(body) + b"data: [DONE]\n\n"


class Pings(Streaming):
    def stream(self, body: bytes) -> bytes:
        pings = b"data: ping\n\nevent: ping\ndata: {}\n\nevent: ping\ndata:\n\ndata: 12\n\ndata: {}\n\n"
        return pings + super().stream(body)


class Named(Streaming):
    def stream(self, body: bytes) -> bytes:
        return super().stream(body).replace(b"event: message", b"event: response")


class Bom(Streaming):
    def stream(self, body: bytes) -> bytes:
        return b"\xef\xbb\xbf" + super().stream(body)


class Capitals(Streaming):
    content_type = 'Text/Event-Stream;Charset="UTF-8"'


class StaysOpen(Chunked):
    def end(self, writer: asyncio.StreamWriter) -> None:
        """It never ends."""


class CutOff(Chunked):
    async def serve(self, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        return await super().serve(asked, writer) and asked.method == "POST" and "id" not in asked.message

    def end(self, writer: asyncio.StreamWriter) -> None:
        """It is cut."""


class Refused(Streaming):
    """An answer in a stream that is an error by its status."""

    def answered(self, message: Json, asked: Asked) -> Reply:
        reply = super().answered(message, asked)
        reply.status = 400 if "error" in message else 200
        return reply


class Unlabelled(Chunked):
    content_type = "text/plain"


class JsonChunked(Chunked):
    def stream(self, body: bytes) -> bytes:
        return body


SERVERS = [
    Streaming, Crlf, Cr, CrlfBytewise, Trailers, WithoutBlankLine, WithoutLineEnd, ChunkedWithoutLineEnd, Comments,
    Retry, NoSpace, Pretty, Done, Pings, Named, Bom, Capitals, StaysOpen, CutOff, Refused, Unlabelled, JsonChunked,
]  # fmt: skip


@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.__name__)
async def test_stream_with_the_answer_in_it_is_read(kind: type[Server]) -> None:
    async with played(kind()) as play:
        await play.works()
