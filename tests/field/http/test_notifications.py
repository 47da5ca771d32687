"""Servers that answer notifications with anything but 202: none of it ends a connection."""

from __future__ import annotations

import asyncio

import pytest

from tests.field.http.gateway import played
from tests.field.http.server import EVENTS, JSON, Asked, Reply, Server

pytestmark = pytest.mark.anyio


def answering(name: str, status: int, body: bytes | None = b"", content_type: str | None = None) -> type[Server]:
    class Notified(Server):
        def notified(self, asked: Asked) -> Reply:
            return Reply(status, body, [] if content_type is None else [("Content-Type", content_type)])

    Notified.__name__ = name
    return Notified


class WantsParams(Server):
    def reply(self, asked: Asked) -> Reply:
        message = asked.message
        if asked.method != "POST" or ("id" not in message and "params" not in message):
            return Reply(400, b"params required", [("Content-Type", "text/plain")])
        return super().reply(asked)


class NeverAnswered(Server):
    async def serve(self, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if asked.method == "POST" and "id" not in asked.message:
            await asyncio.Event().wait()
        return await super().serve(asked, writer)


class HungUpOn(Server):
    def notified(self, asked: Asked) -> Reply:
        raise ConnectionError


ERROR = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}'

SERVERS = [
    answering("Empty400", 400),
    answering("Text404", 404, b"not found", "text/plain"),
    answering("Gets500", 500),
    answering("Gets503", 503, b"busy", "text/plain"),
    answering("Gets405", 405),
    answering("Page403", 403, b"<html>no</html>", "text/html"),
    answering("Gets401", 401),
    answering("Gets204", 204),
    answering("Gets429", 429),
    answering("Page200", 200, b"<html>hello</html>", "text/html"),
    answering("Null", 200, b"null", JSON),
    answering("JsonWithoutBody", 200, b"", JSON),
    answering("Error200", 200, ERROR, JSON),
    answering("Error400", 400, ERROR, JSON),
    answering("ResultWithoutId", 200, b'{"jsonrpc":"2.0","result":{}}', JSON),
    answering("NoEvents", 200, b"", EVENTS),
    answering("SessionSentence", 400, b"session not found", "text/plain"),
    WantsParams,
    NeverAnswered,
    HungUpOn,
]


@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.__name__)
async def test_answer_to_a_notification_ends_nothing(kind: type[Server]) -> None:
    async with played(kind(), timeouts={"idle": 2}) as play:
        await play.works()
        assert play.status.reconnects == 0
