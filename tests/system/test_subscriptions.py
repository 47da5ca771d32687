"""Who watches a resource misses no change of it, however many watch and whatever becomes of its server."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from mcproxy.protocol.eras import Era
from tests.fakes.clients.crowd import crowd
from tests.fakes.clients.raw import over_http
from tests.system.running import PYTHON, ROOT, Gateway, Json, configuration, gateway

pytestmark = pytest.mark.anyio

NUMBER = "counter://number"
MANY = 100
"""Clients of each era."""


def counter(folder: Path, era: str) -> Json:
    """A server whose number begins with 0, watched by the gateway as well."""
    file = folder / "number"
    file.write_text("0")
    arguments = ["-W", "ignore", "-m", "tests.fakes.servers.counter", str(file)]
    return {"command": PYTHON, "args": arguments, "cwd": str(ROOT), "era": era, "cache": {"coherent": True}}


async def count(running: Gateway, tool: str, until: int) -> Json:
    async with over_http(running.server("counter")) as client:
        await client.initialize()
        return await client.call(tool, {"until": until})


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_r21_every_client_ends_with_the_last_value_though_the_server_is_killed_in_a_burst(
    tmp_path: Path, era: str
) -> None:
    settings = configuration({"counter": counter(tmp_path, era)})
    eras = [Era.HANDSHAKE, Era.STATELESS] * MANY
    with anyio.fail_after(100):
        async with (
            gateway(tmp_path, settings) as running,
            crowd(running.server("counter"), NUMBER, eras) as clients,
        ):
            assert "error" in await count(running, "count_and_die", until=500)
            await clients.all_have(501)
            assert "result" in await count(running, "count", until=1000)
            await clients.all_have(1000)
    for client in clients.members:
        assert client.values == sorted(client.values), "a later read brought an older value"
        assert client.told < 1000
