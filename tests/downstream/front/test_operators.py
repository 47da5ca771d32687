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
from mcproxy.access.keys import digest
from mcproxy.downstream.front.operators import Operators
from mcproxy.settings import Settings
from tests.fakes.gateway import FakeGateway, edge_of

pytestmark = pytest.mark.anyio

Client = TestClient[web.Request, web.Application]
KEYS = {"olga": "mcp_olga", "paul": "mcp_paul", "rosa": "mcp_rosa"}


def settings(*, open_to_all: bool = False) -> Settings:
    hashes = {name: digest(key).hex() for name, key in KEYS.items()}
    keys = {
        "olga": [{"sha256": hashes["olga"], "roles": ["operator"]}],
        "paul": [{"sha256": hashes["paul"], "roles": ["reader"]}],
        "rosa": [{"sha256": hashes["rosa"]}],
    }
    access = {
        "authentication": {"keys": keys},
        "policy": {"roles": {"operator": {}}, "principals": {"rosa": ["operator"]}, "default": "allow"},
    }
    return Settings.model_validate({"access": {} if open_to_all else access, "admin": {"port": 0}})


@asynccontextmanager
async def page(given: Settings) -> AsyncIterator[Client]:
    async with edge_of(FakeGateway()) as context:
        identity = Identity(given.access.authentication, context.tasks.start_soon)
        operators = Operators(context, identity, lambda: given)

        async def look(request: web.Request) -> web.Response:
            return web.Response(text=(await operators(request)).name)

        application = web.Application()
        application.router.add_get("/ui", look)
        with anyio.fail_after(5):
            async with TestClient(TestServer(application)) as client:
                yield client


def basic(key: str) -> str:
    return "Basic " + base64.b64encode(f"whoever:{key}".encode()).decode()


async def looks(client: Client, **headers: str) -> tuple[int, str]:
    async with client.get("/ui", headers=headers) as response:
        return response.status, await response.text()


async def test_where_nobody_is_asked_everybody_on_loopback_may() -> None:
    async with page(settings(open_to_all=True)) as client:
        assert await looks(client) == (200, "anonymous")


@pytest.mark.parametrize("shown", ["Bearer mcp_olga", basic("mcp_olga")])
async def test_an_operator_shows_a_key_as_programs_do_or_as_browsers_do(shown: str) -> None:
    async with page(settings()) as client:
        assert await looks(client, Authorization=shown) == (200, "olga")


async def test_the_policy_may_give_the_role() -> None:
    async with page(settings()) as client:
        assert await looks(client, Authorization=basic("mcp_rosa")) == (200, "rosa")


async def test_who_lacks_the_role_may_not() -> None:
    async with page(settings()) as client:
        status, text = await looks(client, Authorization=basic("mcp_paul"))
    assert (status, "admin.role" in text) == (403, True)


@pytest.mark.parametrize("shown", [None, "Basic !", "Basic ", basic(""), basic("mcp_wrong"), "Bearer mcp_wrong"])
async def test_who_shows_nothing_good_is_asked_for_a_password(shown: str | None) -> None:
    async with page(settings()) as client:
        headers = {} if shown is None else {"Authorization": shown}
        async with client.get("/ui", headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"].startswith("Basic ")


async def test_r42_a_name_that_is_not_ours_is_refused() -> None:
    async with page(settings(open_to_all=True)) as client:
        status, text = await looks(client, Host="rebound.example")
    assert (status, "rebound.example" in text) == (421, True)
