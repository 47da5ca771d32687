"""Servers whose bodies are labelled, encoded or spelt in odd ways."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from mcproxy.call.upstreams import LinkState
from tests.field.http.gateway import played
from tests.field.http.server import EVENTS, GREETING, JSON, RESOURCE, Asked, Json, Reply, Server

pytestmark = pytest.mark.anyio


def labelled(name: str, content_type: str | None, before: bytes = b"", after: bytes = b"") -> type[Server]:
    class Labelled(Server):
        def answered(self, message: Json, asked: Asked) -> Reply:
            body = before + self.dumps(message) + after
            return Reply(200, body, [] if content_type is None else [("Content-Type", content_type)])

    Labelled.__name__ = name
    return Labelled


def encoded(name: str, encode: object, coding: str, content_type: str = JSON) -> type[Server]:
    class Encoded(Server):
        def answered(self, message: Json, asked: Asked) -> Reply:
            body = self.dumps(message)
            if content_type == EVENTS:
                body = b"event: message\ndata: " + body + b"\n\n"
            return Reply(200, encode(body), [("Content-Type", content_type), ("Content-Encoding", coding)])  # type: ignore[operator]

    Encoded.__name__ = name
    return Encoded


def raw_deflate(body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(body) + compressor.flush()


class DoubledKeys(Server):
    def dumps(self, message: Json) -> bytes:
        return super().dumps(message).replace(b'"content": [', b'"content": [], "content": [')


def in_events(body: bytes) -> bytes:
    return b"event: message\ndata: " + body + b"\n\n"


class EventsAsJson(Server):
    def answered(self, message: Json, asked: Asked) -> Reply:
        return Reply(200, in_events(self.dumps(message)), [("Content-Type", JSON)])


class EventsUnlabelled(Server):
    def answered(self, message: Json, asked: Asked) -> Reply:
        return Reply(200, b": hello\n\n" + in_events(self.dumps(message)), [])


class ListOfOne(Server):
    def dumps(self, message: Json) -> bytes:
        return b"[" + super().dumps(message) + b"]"


class TextIds(Server):
    def dumps(self, message: Json) -> bytes:
        return super().dumps({**message, "id": str(message["id"])})


class FloatIds(Server):
    def dumps(self, message: Json) -> bytes:
        id = message["id"]
        return super().dumps({**message, "id": float(id) if isinstance(id, int) else id})


class NullErrors(Server):
    def dumps(self, message: Json) -> bytes:
        return super().dumps({"error": None, **message})


class WithoutVersion(Server):
    def dumps(self, message: Json) -> bytes:
        return super().dumps({key: value for key, value in message.items() if key != "jsonrpc"})


SERVERS = [
    labelled("NoType", None),
    labelled("Plain", "text/plain"),
    labelled("Html", "text/html; charset=utf-8"),
    labelled("Octets", "application/octet-stream"),
    labelled("Vendor", "application/vnd.mcp+json; charset=utf-8"),
    labelled("TextJson", "text/json; charset=UTF-8"),
    labelled("Ndjson", "application/x-ndjson", after=b"\n"),
    labelled("Bom", JSON, before=b"\xef\xbb\xbf"),
    labelled("PlainBom", "text/plain", before=b"\xef\xbb\xbf"),
    labelled("BlankLines", JSON, before=b"\r\n\n", after=b"\n\n\r\n"),
    labelled("JsonAsEvents", EVENTS),
    labelled("JsonBomAsEvents", EVENTS, before=b"\xef\xbb\xbf\n", after=b"\n"),
    encoded("Gzip", gzip.compress, "gzip"),
    encoded("XGzip", gzip.compress, "X-GZip"),
    encoded("GzipEvents", gzip.compress, "gzip", EVENTS),
    encoded("Deflate", zlib.compress, "deflate"),
    encoded("RawDeflate", raw_deflate, "deflate"),
    encoded("TwiceGzip", lambda body: gzip.compress(gzip.compress(body)), "gzip, gzip"),
    encoded("GzipMembers", lambda body: gzip.compress(body[:20]) + gzip.compress(body[20:]), "gzip"),
    encoded("Identity", bytes, "Identity"),
    encoded("PlainCalledGzip", bytes, "gzip"),
    DoubledKeys,
    EventsAsJson,
    EventsUnlabelled,
    TextIds,
    FloatIds,
    NullErrors,
]


@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.__name__)
async def test_body_that_is_an_answer_counts(kind: type[Server]) -> None:
    async with played(kind()) as play:
        await play.works()


class Saying(Server):
    """Its tool's result, and its resource's text, are these bytes."""

    def __init__(self, result: bytes, read: bytes = b"") -> None:
        super().__init__()
        self.bytes, self.read = result, read

    def dumps(self, message: Json) -> bytes:
        body, result = super().dumps(message), message.get("result", {})
        if "content" in result:
            return body.replace(json.dumps(result, ensure_ascii=False).encode(), self.bytes)
        if "contents" in result and self.read:
            return body.replace(json.dumps(GREETING, ensure_ascii=False).encode(), self.read)
        return body


def text(value: bytes) -> bytes:
    return b'{"content": [{"type": "text", "text": "' + value + b'"}]}'


async def test_large_integers_stay_exact() -> None:
    said = b'{"content": [], "structuredContent": {"n": 123456789012345678901234567890}}'
    async with played(Saying(said)) as play:
        answer = await play.call("x")
        assert answer["result"]["structuredContent"]["n"] == 123456789012345678901234567890


async def test_small_body_that_unpacks_to_a_huge_one_is_refused() -> None:
    class Bomb(Server):
        def answered(self, message: Json, asked: Asked) -> Reply:
            body = self.dumps(message)
            if message["id"] and "content" in message.get("result", {}):
                body = b" " * 50_000_000 + body
            return Reply(200, gzip.compress(body, 1), [("Content-Type", JSON), ("Content-Encoding", "gzip")])

    async with played(Bomb(), max_message_bytes=1_000_000) as play:
        answer = await play.call("x")
        assert "max_message_bytes" in answer["error"]["message"]
        await play.reads()


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "made-up"])
async def test_unknown_coding_is_named(coding: str) -> None:
    async with played(encoded("Unknown", lambda body: b"\x8b\x01" + body[::-1], coding)()) as play:
        status = await play.until(LinkState.BACKING_OFF)
        assert coding in (status.error or "")


async def test_gzip_that_is_cut_off_is_named_in_time() -> None:
    class Cut(Server):
        def answered(self, message: Json, asked: Asked) -> Reply:
            body = gzip.compress(self.dumps(message))
            if "content" in message.get("result", {}):
                body = body[:-12]
            return Reply(200, body, [("Content-Type", JSON), ("Content-Encoding", "gzip")])

    async with played(Cut()) as play:
        answer = await play.call("x")
        assert "gzip" in answer["error"]["message"]


class Page(Server):
    status, type = 200, "text/html"
    body = b"<!doctype html><html><head><title>Sign in</title></head><body>Welcome, please sign in</body></html>"

    def reply(self, asked: Asked) -> Reply:
        return Reply(self.status, self.body, [("Content-Type", self.type)])


class PageWithoutType(Page):
    type = "text/plain"


class BadGateway(Page):
    status = 502
    body = b"<html><body><h1>502 Bad Gateway</h1>upstream pool is empty" + b"<p>x</p>" * 1000 + b"</body></html>"


@pytest.mark.parametrize("kind", [Page, PageWithoutType])
async def test_web_page_is_named(kind: type[Page]) -> None:
    async with played(kind()) as play:
        status = await play.until(LinkState.BACKING_OFF)
        assert "web page" in (status.error or "")


async def test_page_of_a_proxy_is_named_by_its_status() -> None:
    async with played(BadGateway()) as play:
        status = await play.until(LinkState.BACKING_OFF)
        assert "502" in (status.error or "")
        assert len(status.error or "") < 1000


async def test_utf_16_is_refused_naming_it() -> None:
    class Utf16(Server):
        def dumps(self, message: Json) -> bytes:
            return json.dumps(message).encode("utf-16")

    async with played(Utf16()) as play:
        status = await play.until(LinkState.BACKING_OFF)
        assert "UTF-" in (status.error or "") or "JSON" in (status.error or "")


@pytest.mark.parametrize("after", [b"<!-- cached -->", b"\0"])
async def test_what_follows_the_json_is_taken_or_named(after: bytes) -> None:
    async with played(labelled("Followed", JSON, after=after)()) as play:
        status = await play.until(LinkState.BACKING_OFF, LinkState.READY)
        if status.state is LinkState.READY:
            await play.works()
        else:
            assert "JSON" in (status.error or "")


async def test_text_that_was_encoded_twice_passes() -> None:
    said = GREETING.encode().decode("latin-1")
    async with played(Server()) as play:
        assert (await play.call(said))["result"]["content"][0]["text"] == said
    assert RESOURCE


class ErrorsWithoutId(Server):
    id: object = None

    def message(self, request: Json) -> Json:
        if request["method"] == "tools/call" and request["params"]["arguments"]["text"] == "fail":
            return self.error(None, -32000, "the tool is out of ink")
        return super().message(request)

    def error(self, id: object, code: int, text: str, data: object = None) -> Json:
        return super().error(None, code, text, data)


class ErrorsLackId(ErrorsWithoutId):
    def error(self, id: object, code: int, text: str, data: object = None) -> Json:
        error = super().error(id, code, text, data)
        del error["id"]
        return error


class FloatCodes(ErrorsWithoutId):
    def error(self, id: object, code: int, text: str, data: object = None) -> Json:
        error = super().error(id, code, text, data)
        error["error"]["code"] = float(code)
        return error


class TextCodes(ErrorsWithoutId):
    def error(self, id: object, code: int, text: str, data: object = None) -> Json:
        error = super().error(id, code, text, data)
        error["error"]["code"] = "E_INK"
        return error


class NoCodes(ErrorsWithoutId):
    def error(self, id: object, code: int, text: str, data: object = None) -> Json:
        error = super().error(id, code, text, data)
        del error["error"]["code"]
        return error


class TextErrors(ErrorsWithoutId):
    def error(self, id: object, code: int, text: str, data: object = None) -> Json:
        return {"jsonrpc": "2.0", "id": id, "error": text}


class ErrorsWith500(ErrorsWithoutId):
    def answered(self, message: Json, asked: Asked) -> Reply:
        reply = super().answered(message, asked)
        reply.status = 500 if "error" in message else 200
        return reply
