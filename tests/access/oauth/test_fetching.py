"""Documents of issuers: what is gone to, and how much of it is taken (requirement R43)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web

from mcproxy.access.oauth.fetching import FetchFailed, fetch
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def server(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, 0).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_document_is_what_is_there() -> None:
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response(body=b"{}")

    with anyio.fail_after(GUARD):
        async with server(answer) as url:
            assert await fetch(f"{url}/jwks", 100) == b"{}"
    assert not {"Authorization", "Cookie"} & set(seen[0].headers)


async def test_an_issuer_in_the_open_may_be_at_every_loopback_address_as_in_the_settings() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=b"{}")

    with anyio.fail_after(GUARD):
        async with server(answer, "127.0.0.2") as url:
            assert await fetch(f"{url}/jwks", 100) == b"{}"


@pytest.mark.parametrize(
    "target", ["https://{host}/elsewhere", "http://127.0.0.2:{port}/elsewhere", "file:///etc/passwd", ""]
)
async def test_r43_a_redirect_to_another_origin_is_not_followed(target: str) -> None:
    paths: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        host, port = request.host, request.url.port
        return web.Response(status=302, headers={"Location": target.format(host=host, port=port)})

    with anyio.fail_after(GUARD):
        async with server(answer) as url:
            with pytest.raises(FetchFailed, match="a redirect"):
                await fetch(f"{url}/jwks", 100)
    assert paths == ["/jwks"]


async def test_a_redirect_within_the_origin_is_followed_a_few_times() -> None:
    async def answer(request: web.Request) -> web.Response:
        left = int(request.path.removeprefix("/jwks"))
        return (
            web.Response(body=b"{}") if left == 0 else web.Response(status=308, headers={"Location": f"jwks{left - 1}"})
        )

    with anyio.fail_after(GUARD):
        async with server(answer) as url:
            assert await fetch(f"{url}/jwks5", 100) == b"{}"
            with pytest.raises(FetchFailed, match="more than 5 times"):
                await fetch(f"{url}/jwks6", 100)


@pytest.mark.parametrize("compress", [False, True])
async def test_a_document_without_end_is_given_up(compress: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if compress:
            response.enable_compression()
        await response.prepare(request)
        while True:
            await response.write(b" " * 100_000)

    with anyio.fail_after(GUARD):
        async with server(answer) as url:
            with pytest.raises(FetchFailed, match="more than 5000000 bytes"):
                await fetch(f"{url}/jwks", 5_000_000)


async def test_what_is_not_there_is_told_from_what_does_not_answer_well() -> None:
    async def missing(request: web.Request) -> web.Response:
        raise web.HTTPNotFound

    async def broken(request: web.Request) -> web.Response:
        raise web.HTTPServiceUnavailable

    with anyio.fail_after(GUARD):
        async with server(missing) as url:
            with pytest.raises(FetchFailed):
                await fetch(url, 100)
        async with server(broken) as url:
            with pytest.raises(FetchFailed, match="HTTP 503"):
                await fetch(url, 100)
        with pytest.raises(FetchFailed):
            await fetch(url, 100)


@pytest.mark.parametrize(
    "url", ["http://keys.example/", "file:///etc/passwd", "ftp://x/", "http://127.0.0.1.evil.example/", "data:,x", ""]
)
async def test_r43_nothing_is_fetched_in_the_open_but_from_loopback(url: str) -> None:
    with pytest.raises(FetchFailed, match="is not https"):
        await fetch(url, 100)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("[::1]", "[fe80::1]", "[fd00::1]", "[::ffff:127.0.0.1]", "[::ffff:169.254.169.254]", "localhost"),
    ],
)
async def test_r43_what_must_be_public_is_not_sought_inside(host: str) -> None:
    with anyio.fail_after(GUARD), pytest.raises(FetchFailed, match="public"):
        await fetch(f"https://{host}:9/", 100, public=True)


async def test_r43_what_must_be_public_is_not_loopback_over_http_either() -> None:
    with pytest.raises(FetchFailed, match="is not https"):
        await fetch("http://127.0.0.1:9/", 100, public=True)
