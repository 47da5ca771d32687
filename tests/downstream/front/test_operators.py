"""Who is an operator."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import pytest
from aiohttp import ClientSession

from mcproxy.access.identity import Identified
from mcproxy.access.keys import key_digest
from mcproxy.downstream.front.authentication import Authenticator
from mcproxy.downstream.front.operators import for_operators
from mcproxy.http import server
from mcproxy.settings import Settings
from tests.fakes.gateway import served
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

KEYS = {"olga": "mcp_olga", "paul": "mcp_paul", "rosa": "mcp_rosa"}


def settings(*, open_to_all: bool = False) -> Settings:
    hashes = {name: key_digest(key).hex() for name, key in KEYS.items()}
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


@pytest.mark.parametrize(
    ("shown", "status"), [(None, 401), ("Bearer mcp_wrong", 401), ("Bearer mcp_paul", 403), ("Bearer mcp_olga", 200)]
)
async def test_a_route_for_operators_needs_the_role(shown: str | None, status: int) -> None:
    given = settings()

    async def report(_request: server.Request, _path: Mapping[str, str]) -> server.Response:
        return server.Response(200, b"figures")

    async def identify(request: server.Request) -> Identified:
        return await Authenticator(running.context, running.identity)(request)

    route = server.Route("GET", "/metrics", for_operators(report, identify, lambda: given))
    with anyio.fail_after(GUARD):
        async with (
            served(authentication=given.access.authentication, extra_routes=[route]) as running,
            ClientSession() as http,
            http.get(f"{running.url}/metrics", headers={} if shown is None else {"Authorization": shown}) as response,
        ):
            assert response.status == status
            assert (await response.text() == "figures") == (status == 200)
