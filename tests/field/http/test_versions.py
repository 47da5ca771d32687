"""Servers that refuse the version of `initialize`, a header of it, or a method, each in its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from mcproxy.call.upstreams import LinkState
from tests.field.http.gateway import played
from tests.field.http.server import JSON, Asked, Json, Reply, Server

pytestmark = pytest.mark.anyio


class Refusing(Server):
    """Refuses `initialize` with any other version than its own, as JSON-RPC error."""

    versions: ClassVar[Sequence[str]] = ("2025-06-18", "2025-03-26")
    status = 200
    code = -32602
    text = "Unsupported protocol version: X"
    data: object = None

    def refusal(self, asked: Asked) -> Reply | None:
        message = asked.message
        if message.get("method") != "initialize" or message["params"]["protocolVersion"] in self.versions:
            return None
        return self.refused(message)

    def refused(self, message: Json) -> Reply:
        body = self.dumps(self.error(message["id"], self.code, self.text, self.data))
        return Reply(self.status, body, [("Content-Type", JSON)])


class ListedInText(Refusing):
    def refused(self, message: Json) -> Reply:
        text = b"Bad Request: Unsupported protocol version (supported versions: 2025-06-18, 2025-03-26, 2024-11-05)"
        return Reply(400, text, [("Content-Type", "text/plain")])


class ListedInData(Refusing):
    data: object = {"supported": ["2025-03-26", "2025-06-18"], "requested": "2025-11-25"}


class ListedInDataWith400(ListedInData):
    status = 400


class ExpectedInData(Refusing):
    versions = ("2025-03-26",)
    data: object = {"expected": "2025-03-26"}


class SupportedVersions(Refusing):
    status, code = 400, -32000
    data: object = {"supportedVersions": ["2025-06-18"]}


class NowhereListed(Refusing):
    versions: ClassVar[Sequence[str]] = ("2025-06-18",)


class NowhereListedOldest(Refusing):
    versions = ("2024-11-05",)
    status = 400


class InvalidRequest(Refusing):
    code, text = -32600, "Invalid Request"


class InternalError(Refusing):
    status, code, text = 500, -32603, "Internal error: unknown protocol version"


class RefusedByAnEmpty400(Refusing):
    versions = ("2025-03-26",)

    def refused(self, message: Json) -> Reply:
        return Reply(400)


class OldAnswer(Server):
    versions = ("2024-11-05",)
    version = "2024-11-05"


class OldHeaders(Server):
    versions = ("2025-03-26", "2024-11-05")
    version = "2025-03-26"
    status, body = 400, b"Bad Request: Unsupported protocol version"

    def refusal(self, asked: Asked) -> Reply | None:
        if asked.version in (None, "2025-03-26", "2024-11-05"):
            return None
        return Reply(self.status, self.body, [("Content-Type", "text/plain")])


class OldHeadersWith404(OldHeaders):
    status, body = 404, b""


class NoHeader(OldAnswer):
    def refusal(self, asked: Asked) -> Reply | None:
        if asked.version is None:
            return None
        return Reply(400, b"unknown header", [("Content-Type", "text/plain")])


class UnknownIs500(Server):
    def reply(self, asked: Asked) -> Reply:
        message = asked.message
        if "id" in message and self.result(message["method"], {"arguments": {"text": ""}}) is None:
            return Reply(500, b"<html><h1>Oops</h1></html>", [("Content-Type", "text/html")])
        return super().reply(asked)


class UnknownIs202(Server):
    def reply(self, asked: Asked) -> Reply:
        message = asked.message
        if "id" in message and self.result(message["method"], {"arguments": {"text": ""}}) is None:
            return Reply(202)
        return super().reply(asked)


def discover_gets(status: int) -> type[Server]:
    class Discover(Server):
        def refusal(self, asked: Asked) -> Reply | None:
            return Reply(status) if asked.message.get("method") == "server/discover" else None

    Discover.__name__ = f"DiscoverGets{status}"
    return Discover


class DiscoverHangsUp(Server):
    def refusal(self, asked: Asked) -> Reply | None:
        if asked.message.get("method") == "server/discover":
            raise ConnectionError
        return None


SERVERS = [
    ListedInText,
    ListedInData,
    ListedInDataWith400,
    ExpectedInData,
    SupportedVersions,
    NowhereListed,
    NowhereListedOldest,
    InvalidRequest,
    InternalError,
    RefusedByAnEmpty400,
    OldAnswer,
    OldHeaders,
    OldHeadersWith404,
    NoHeader,
    UnknownIs500,
    UnknownIs202,
    DiscoverHangsUp,
    *(discover_gets(status) for status in (403, 404, 405, 429, 500, 502, 503)),
]


@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.__name__)
async def test_server_of_other_versions_works(kind: type[Server]) -> None:
    async with played(kind()) as play:
        await play.works()


class Tomorrow(Server):
    """Speaks a version that nobody here knows."""

    def refusal(self, asked: Asked) -> Reply | None:
        message = asked.message
        if "id" not in message:
            return None
        error = self.error(message["id"], -32022, "Unsupported protocol version", {"supported": ["2027-01-01"]})
        return Reply(400, self.dumps(error), [("Content-Type", JSON)])


async def test_server_of_a_later_version_is_refused_naming_it() -> None:
    async with played(Tomorrow()) as play:
        status = await play.until(LinkState.BACKING_OFF)
        assert "2027-01-01" in (status.error or "")


async def test_version_is_stepped_down_at_most_once_each() -> None:
    class Never(NowhereListed):
        versions: ClassVar[Sequence[str]] = ()

    server = Never()
    async with played(server) as play:
        status = await play.until(LinkState.BACKING_OFF)
        assert server.times("initialize") <= 5
        assert "Unsupported protocol version" in (status.error or "")
