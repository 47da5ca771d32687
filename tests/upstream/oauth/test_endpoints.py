"""The twin of `mcproxy.upstream.oauth.endpoints`: which addresses a server's word makes the gateway connect to.

What is connected to is watched where the interpreter asks the system for it, by an audit hook of Python's.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from aiohttp import web

from mcproxy.settings.upstreams.oauth import OAuthClient, OAuthSettings
from mcproxy.upstream.oauth.challenge import BearerChallenge
from mcproxy.upstream.oauth.endpoints import EndpointFailed, Endpoints
from mcproxy.upstream.oauth.flow import OAuthFlow
from mcproxy.upstream.oauth.storage.store import MemoryStore
from mcproxy.upstream.oauth.tokens import TokenUnavailable
from tests.fakes.authorization import authorization

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})])]

ITSELF = OAuthSettings(grant="client_credentials", client=OAuthClient(id="me", secret="s"))

_watching: list[list[str]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and _watching:
        target = arguments[1]
        _watching[-1].append(target[0] if isinstance(target, tuple) else str(target))


sys.addaudithook(_hook)


@contextmanager
def connections() -> Iterator[list[str]]:
    """The addresses that this process connects to meanwhile, whether they answer or not."""
    made: list[str] = []
    _watching.append(made)
    try:
        yield made
    finally:
        _watching.remove(made)


INSIDE = [
    "https://169.254.169.254/latest/meta-data",
    "https://[::ffff:169.254.169.254]/",
    "https://[64:ff9b::a9fe:a9fe]/",
    "https://[2002:a9fe:a9fe::1]/",
    "https://[::a9fe:a9fe]/",
    "https://[fe80::1%25lo]/",
    "https://10.0.0.1/",
    "https://127.0.0.1:1/",
    "https://127.1:1/",
    "https://2130706433:1/",
    "https://0x7f000001:1/",
    "https://0.0.0.0:1/",
    "https://[::1]:1/",
    "https://localhost:1/",
    "https://localhost.:1/",
    "https://user:password@93.184.216.34/",
    "http://93.184.216.34/",
    "ftp://93.184.216.34/",
    "file:///etc/passwd",
    "https://",
    "https://[::1",
]
"""What a hostile server may name; names among them lead to loopback, as one that is bound anew does."""


async def test_the_watch_sees_connections_that_are_made() -> None:
    async with authorization() as server:
        with connections() as made:
            await Endpoints((server.url,)).get(f"{server.origin}/.well-known/oauth-authorization-server")
    assert made == ["127.0.0.1"]


@pytest.mark.parametrize("url", INSIDE)
async def test_r43_what_a_server_names_inside_the_network_is_not_connected_to(url: str) -> None:
    with connections() as made:
        for ask in (Endpoints(("https://mcp.example/mcp",)).get, _posting):
            with pytest.raises(EndpointFailed):
                await ask(url)
    assert made == []


async def _posting(url: str) -> object:
    return await Endpoints(("https://mcp.example/mcp",)).post(url, b"grant_type=x", {})


@pytest.mark.parametrize("url", ["https://169.254.169.254/m", "https://[::ffff:10.0.0.1]/m", "http://10.0.0.1/m"])
async def test_r43_a_challenge_that_names_metadata_inside_the_network_is_not_followed(url: str) -> None:
    async with authorization() as server:
        flow = OAuthFlow("up", server.url, OAuthSettings(), MemoryStore())
        with connections() as made:
            found = await flow.discover(BearerChallenge(url))
        assert found.server.issuer == server.origin, "the server's own well-known URLs are asked instead"
    assert set(made) == {"127.0.0.1"}


@pytest.mark.parametrize("endpoint", ["token_endpoint", "registration_endpoint", "device_authorization_endpoint"])
async def test_r43_endpoints_that_metadata_names_inside_the_network_are_not_connected_to(endpoint: str) -> None:
    async with authorization(metadata={endpoint: "https://169.254.169.254/latest"}) as server:
        flow = OAuthFlow("up", server.url, ITSELF if endpoint == "token_endpoint" else OAuthSettings(), MemoryStore())
        found = await flow.discover(None)
        ask = flow.request_token if endpoint == "token_endpoint" else flow.begin_device_login
        with connections() as made, pytest.raises((EndpointFailed, TokenUnavailable), match="not public"):
            await ask(found)
    assert set(made) <= {"127.0.0.1"}


@asynccontextmanager
async def redirecting(target: str) -> AsyncIterator[str]:
    """A server on loopback that redirects everything."""

    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": target})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", redirect)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_r43_a_redirect_to_another_origin_is_followed_nowhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        async with redirecting(f"http://127.0.0.1:{elsewhere.getsockname()[1]}/x") as origin:
            with connections() as made:
                with pytest.raises(EndpointFailed, match=r"a redirect to .*/x, which is not followed"):
                    await Endpoints((origin,)).get(f"{origin}/metadata")
                with pytest.raises(EndpointFailed, match=r"a redirect to .*/x, which is not followed"):
                    await Endpoints((origin,)).post(f"{origin}/token", b"refresh_token=x", {})
        assert len(made) == 2, "one connection for each request"


async def test_an_answer_without_end_is_cut_off() -> None:
    async def pour(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    app = web.Application()
    app.router.add_get("/", pour)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
        with pytest.raises(EndpointFailed, match="more than"):
            await Endpoints((origin,)).get(origin)
    finally:
        await runner.cleanup()
