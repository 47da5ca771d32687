"""Servers that send their clients elsewhere, or give them cookies to bring back."""

from __future__ import annotations

import re

import pytest

from mcproxy.call.upstreams import LinkState
from tests.field.http.gateway import played
from tests.field.http.server import Asked, Reply, Server

pytestmark = pytest.mark.anyio


class Moved(Server):
    """All that is asked at /mcp is at /mcp/."""

    status = 307
    is_absolute = False

    def reply(self, asked: Asked) -> Reply:
        if asked.target == "/mcp":
            target = f"{self.url}/" if self.is_absolute else "/mcp/"
            return Reply(self.status, b"moved", [("Location", target), ("Content-Type", "text/html")])
        return super().reply(asked)


@pytest.mark.parametrize("is_absolute", [False, True])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirect_within_the_origin_is_followed(status: int, is_absolute: bool) -> None:
    server = Moved()
    server.status, server.is_absolute = status, is_absolute
    async with played(server) as play:
        await play.works()
    assert all(asked.method != "GET" for asked in server.asked if asked.body)


async def test_redirect_to_another_port_is_refused_naming_all_but_its_query() -> None:
    class Elsewhere(Server):
        def reply(self, asked: Asked) -> Reply:
            return Reply(307, b"", [("Location", "http://127.0.0.1:9/other/mcp?key=secret")])

    async with played(Elsewhere()) as play:
        error = (await play.until(LinkState.BACKING_OFF)).error or ""
    assert "http://127.0.0.1:9/other/mcp" in error
    assert "secret" not in error


async def test_redirects_without_end_are_refused() -> None:
    class Round(Server):
        def reply(self, asked: Asked) -> Reply:
            return Reply(308, b"", [("Location", "/mcp")])

    server = Round()
    async with played(server) as play:
        assert "redirects" in ((await play.until(LinkState.BACKING_OFF)).error or "")


class Sticky(Server):
    """A balancer that sets its cookies anew at each answer, and refuses requests without one of them."""

    def reply(self, asked: Asked) -> Reply:
        brought = asked.fields.get("cookie", "")
        is_first = asked.message.get("method") in ("server/discover", "initialize")
        if not is_first and re.fullmatch(r'lb="a b/\d+=="', brought) is None:
            return Reply(400, b"no cookie: " + brought.encode())
        reply = super().reply(asked)
        reply.fields.append(("Set-Cookie", f'lb="a b/{len(self.asked)}=="; Path=/; HttpOnly'))
        return reply

    def got(self, asked: Asked) -> Reply:
        return Reply(405)


async def test_cookie_of_a_server_at_an_ip_address_goes_back_as_it_came() -> None:
    async with played(Sticky()) as play:
        await play.works()
