"""Who may look at the status page."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from mcproxy.access.identity import Identity
from mcproxy.downstream.front.page_authentication import OperatorAuthentication
from mcproxy.settings import Proxy, Settings
from tests.downstream.front.test_operators import settings
from tests.fakes.gateway import FakeGateway, edge_of
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

Client = TestClient[web.Request, web.Application]


@asynccontextmanager
async def page(given: Settings, allowed_hosts: tuple[str, ...] = ()) -> AsyncIterator[Client]:
    async with edge_of(FakeGateway(), Proxy(allowed_hosts=allowed_hosts)) as context:
        identity = Identity(given.access.authentication, context.tasks.start_soon)
        operators = OperatorAuthentication(context, identity, lambda: given)

        async def look(request: web.Request) -> web.Response:
            operators.check_host(request)
            return web.Response(text=(await operators(request)).name)

        async def peek(request: web.Request) -> web.Response:
            return web.Response(text="operator" if await operators.is_operator(request) else "somebody")

        application = web.Application()
        application.router.add_get("/ui", look)
        application.router.add_get("/readyz", peek)
        with anyio.fail_after(GUARD):
            async with TestClient(TestServer(application)) as client:
                yield client


def basic(key: str) -> str:
    return "Basic " + base64.b64encode(f"whoever:{key}".encode()).decode()


async def looks(client: Client, **headers: str) -> tuple[int, str]:
    async with client.get("/ui", headers=headers) as response:
        return response.status, await response.text()


async def test_without_authentication_every_caller_on_loopback_may() -> None:
    async with page(settings(open_to_all=True)) as client:
        assert await looks(client) == (200, "anonymous")


@pytest.mark.parametrize("shown", ["Bearer mcp_olga", basic("mcp_olga")])
async def test_an_operator_shows_a_key_as_programs_do_or_as_browsers_do(shown: str) -> None:
    async with page(settings()) as client:
        assert await looks(client, Authorization=shown) == (200, "olga")


async def test_the_policy_may_give_the_role() -> None:
    async with page(settings()) as client:
        assert await looks(client, Authorization=basic("mcp_rosa")) == (200, "rosa")


async def test_a_caller_without_the_role_may_not() -> None:
    async with page(settings()) as client:
        status, text = await looks(client, Authorization=basic("mcp_paul"))
    assert (status, "admin.role" in text) == (403, True)


@pytest.mark.parametrize("shown", [None, "Basic !", "Basic ", basic(""), basic("mcp_wrong"), "Bearer mcp_wrong"])
async def test_a_request_without_good_credentials_is_asked_for_a_password(shown: str | None) -> None:
    async with page(settings()) as client:
        headers = {} if shown is None else {"Authorization": shown}
        async with client.get("/ui", headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"].startswith("Basic ")


async def test_r42_a_name_that_is_not_ours_is_refused() -> None:
    async with page(settings(open_to_all=True)) as client:
        status, text = await looks(client, Host="rebound.example")
    assert (status, "rebound.example" in text) == (421, True)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "[::1]:9", "gw.example:8001"])
async def test_r42_loopback_names_listed_ones_and_the_address_of_the_connection_are_ours(host: str) -> None:
    async with page(settings(open_to_all=True), allowed_hosts=("gw.example",)) as client:
        assert (await looks(client, Host=host))[0] == 200


async def test_r42_the_host_of_the_public_url_is_ours() -> None:
    given = settings(open_to_all=True)
    admin = given.admin.model_copy(update={"public_url": "https://ops.example/gateway"})
    async with page(given.model_copy(update={"admin": admin})) as client:
        assert (await looks(client, Host="ops.example"))[0] == 200
        assert (await looks(client, Host="gateway.example"))[0] == 421


@pytest.mark.parametrize(
    ("shown", "who"),
    [
        ({}, "somebody"),
        ({"Authorization": "Bearer mcp_made_up"}, "somebody"),
        ({"Authorization": basic("mcp_olga")}, "operator"),
    ],
)
async def test_a_page_for_everyone_tells_operators_from_others(shown: dict[str, str], who: str) -> None:
    async with page(settings()) as client, client.get("/readyz", headers=shown) as response:
        assert (response.status, await response.text()) == (200, who)
