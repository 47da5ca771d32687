"""An extension that the gateway does not know, between the client and the server of the official TypeScript SDK.

Where the server is alone behind the endpoint: requests, notifications in both directions and, in the handshake era, the
server's questions. Where another server is behind it too: nothing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.system.running import NODE, Gateway, Json, configuration, gateway, need_npm, run
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

NOVEL: Final = "io.example/novel"
MODES: Final = {"legacy": "legacy", "modern": "auto"}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def running(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    need_npm()
    servers: Json = {
        era: {"command": "node", "args": [str(NODE / "extension_server.mjs"), era], "connection": connection}
        for era, connection in [("legacy", "session"), ("modern", "shared")]
    }
    async with gateway(tmp_path_factory.mktemp("extensions"), configuration(servers, list_wait=60)) as made:
        yield made


async def used(era: str, url: str) -> Json:
    found: Json = json.loads(await run(["node", str(NODE / "extension_client.mjs"), MODES[era], url], within=GUARD))
    return found


async def test_in_the_handshake_era_everything_passes(running: Gateway) -> None:
    found = await used("legacy", running.server("legacy"))
    assert found["result"] == {"did": "x", "answer": {"said": "x!"}, "pokes": 1}
    assert (found["offered"], found["heard"]) == ([NOVEL], ["x"])


async def test_in_the_stateless_era_requests_and_what_is_told_meanwhile_pass(running: Gateway) -> None:
    found = await used("modern", running.server("modern"))
    assert found["result"]["did"] == "x"
    assert (found["offered"], found["heard"]) == ([NOVEL], ["x"])


async def test_an_old_client_reaches_a_stateless_server(running: Gateway) -> None:
    found = await used("legacy", running.server("modern"))
    assert found["result"]["did"] == "x"
    assert (found["offered"], found["heard"]) == ([NOVEL], ["x"])


@pytest.mark.parametrize("era", MODES)
async def test_where_both_servers_are_nothing_is_offered_and_nothing_passes(running: Gateway, era: str) -> None:
    found = await used(era, f"{running.url}/mcp")
    refused = {
        "legacy": -32601,
        "modern": "CLIENT_HTTP_NOT_IMPLEMENTED",
    }  # what the SDK makes of -32601 with status 404
    assert found == {"offered": [], "code": refused[era], "heard": []}
