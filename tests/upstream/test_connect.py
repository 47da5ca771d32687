"""How `type: auto` finds out which transport a URL speaks."""

from __future__ import annotations

import sys

import pytest
from aiohttp import web

from mcproxy.call.upstreams import Connected, Disconnected
from mcproxy.settings import UpstreamSettings
from mcproxy.upstream.connect import address, transport
from tests.fakes.servers.web import FakeSse, FakeStreamable, serving
from tests.upstream.support import QUICK, child, failure, running, tool, value

pytestmark = pytest.mark.anyio


def auto(url: str) -> UpstreamSettings:
    return UpstreamSettings(name="any", prefix="any", url=url, timeouts=QUICK)


async def test_a_server_that_takes_the_post_is_spoken_to_over_streamable_http() -> None:
    async with serving(FakeStreamable()) as url, running(auto(url)) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert it.events.of(Connected)[0].identity.version == "2025-11-25"


async def test_a_server_that_refuses_the_post_as_unknown_is_spoken_to_over_sse() -> None:
    server = FakeSse()
    async with serving(server) as url, running(auto(f"{url}/sse")) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert it.events.of(Connected)[0].identity.version == "2024-11-05"
        server.over.set()


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_credentials_and_failures_are_no_reason_to_try_the_old_transport(status: int) -> None:
    methods: list[str] = []

    async def refuse(http: web.Request) -> web.StreamResponse:
        methods.append(http.method)
        return web.Response(status=status)

    async with serving(refuse) as url, running(auto(url), delays=lambda _: 3600) as it:
        assert f"HTTP {status}" in failure(await it.upstream(tool("echo"))).error.message
    assert set(methods) == {"POST"}


async def test_r85_a_child_that_dies_of_the_same_whatever_it_is_asked_says_so_once() -> None:
    dying = ("-c", "import sys; sys.exit('no database')")
    spec = UpstreamSettings(name="kid", prefix="kid", command=sys.executable, args=dying, timeouts=QUICK)
    async with running(spec, delays=lambda _: 3600) as it:
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        assert it.events.of(Disconnected)[0].reason.count("no database") == 1


def test_a_command_is_stdio_whatever_else() -> None:
    assert transport(child()) == "stdio"
    assert transport(auto("http://a")) == "auto"


def test_the_address_of_an_upstream_is_that_of_its_url() -> None:
    assert address(auto("https://mcp.example.com/mcp")) == ("mcp.example.com", 443)
    assert address(auto("http://user:secret@[::1]:8000/mcp?key=secret")) == ("::1", 8000)
    assert address(child()) is None
