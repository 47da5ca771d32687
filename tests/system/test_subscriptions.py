"""Who watches a resource misses no change of it, however many watch and whatever becomes of its server.

And whoever takes nothing of what it is told is disconnected, to nobody else's harm.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskStatus
from prometheus_client.parser import text_string_to_metric_families

from mcproxy.protocol.eras import Era
from tests.depth import IN_CI
from tests.downstream import client as handshake
from tests.downstream import modern
from tests.fakes.clients.crowd import crowd
from tests.fakes.clients.deaf import DeafClient, deaf_client
from tests.fakes.clients.raw import RawClient, over_http
from tests.system.running import PYTHON, ROOT, Gateway, Json, configuration, gateway

pytestmark = pytest.mark.anyio

NUMBER = "counter://number"
CALM = "talk:calm"
LOUD = [f"talk:{number}" for number in range(200)]
MANY = 100 if IN_CI else 10
"""Clients of each era that watch a counter."""
OTHERS = 50
"""Clients beside one that never reads."""
MIB = 2**20
LIMITS: Json = {"max_subscriptions_per_session": len(LOUD) + 1, "max_tasks_per_session": 1}
"""The fewer changes may wait for a client, the more each of them may say."""
PATIENCE = 480
"""Seconds, for a machine that is busy with much else; nothing here is judged by the clock."""


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
    with anyio.fail_after(PATIENCE):
        async with (
            gateway(tmp_path, settings) as running,
            crowd(running.server("counter"), NUMBER, eras) as clients,
        ):
            assert "error" in await count(running, "count_and_die", until=500)
            await clients.all_have(501)
            assert "result" in await count(running, "count", until=1000)
            await clients.all_have(1000)
            # Nobody announces this one: that it may have changed is all that anybody can say.
            assert "error" in await count(running, "count_and_die", until=1000)
            await clients.all_have(1001)
    for client in clients.members:
        assert client.values == sorted(client.values), "a later read brought an older value"
        assert client.told < 1000


@asynccontextmanager
async def talking(folder: Path) -> AsyncIterator[tuple[Gateway, list[RawClient]]]:
    """A gateway in front of a server that says much, and clients that watch what seldom changes there."""
    talker = {"command": PYTHON, "args": ["-m", "tests.fakes.servers.talker"], "cwd": str(ROOT), "era": "legacy"}
    clients: list[RawClient] = []

    async def attend(url: str, *, task_status: TaskStatus[None]) -> None:
        async with over_http(url) as client:
            await client.initialize()
            await client.result("resources/subscribe", {"uri": CALM})
            clients.append(client)
            task_status.started()
            await anyio.sleep_forever()

    with anyio.fail_after(PATIENCE):
        async with (
            gateway(folder, configuration({"talker": talker}, write_timeout=1, limits=LIMITS)) as running,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(OTHERS):
                await tasks.start(attend, running.server("talker"))
            yield running, clients
            tasks.cancel_scope.cancel()


async def change(client: RawClient, uris: Sequence[str], times: int, size: int) -> None:
    assert "result" in await client.call("change", {"uris": uris, "times": times, "bytes": size})


async def go_on(clients: Sequence[RawClient]) -> None:
    """All of them at once: each calls several times, gets its answers, and hears what it watches."""

    async def work(client: RawClient) -> None:
        for size in range(1, 4):
            [content] = (await client.call("say", {"bytes": size}))["result"]["content"]
            assert content["text"] == "x" * size

    async with anyio.create_task_group() as tasks:
        for client in clients:
            tasks.start_soon(work, client)
    heard = [len(client.heard) for client in clients]
    await change(clients[0], [CALM], times=1, size=1)
    for client, before in zip(clients, heard, strict=True):
        assert [each["uri"] for each in await client.hears("notifications/resources/updated", before + 1)][-1] == CALM


async def listen(running: Gateway, deaf: DeafClient, era: Era, uris: Sequence[str]) -> None:
    """Opens a stream of changes of `uris`, as clients of `era` do."""
    if era is Era.STATELESS:
        message = modern.request(1, "subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
        deaf.post(modern.headers_of(message), message)
        return
    deaf.get(await subscribed(running.server("talker"), uris))


async def subscribed(url: str, uris: Sequence[str]) -> dict[str, str]:
    """The headers of a new session that watches `uris`."""
    headers = {"Accept": handshake.BOTH}
    async with aiohttp.ClientSession() as http:
        async with http.post(url, json=handshake.initialize(), headers=headers) as response:
            headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
        headers["MCP-Protocol-Version"] = "2025-11-25"
        requests = [handshake.request(1, "resources/subscribe", {"uri": uri}) for uri in uris]
        for message in (handshake.notification("notifications/initialized"), *requests):
            async with http.post(url, json=message, headers=headers) as response:
                assert response.status in (200, 202)
    return headers


async def measured(running: Gateway, name: str, **labels: str) -> float:
    """The sum of a metric's series that have these labels."""
    async with aiohttp.ClientSession() as http, http.get(f"{running.url}/metrics") as response:
        families = list(text_string_to_metric_families(await response.text()))
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def peak(running: Gateway) -> int:
    """The most bytes that the gateway ever had in memory."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.skipif(sys.platform != "linux", reason="what a process takes is read from /proc")
@pytest.mark.parametrize("era", Era)
async def test_r23_a_client_that_listens_and_never_reads_is_disconnected_and_harms_no_other(
    tmp_path: Path, era: Era
) -> None:
    async with talking(tmp_path) as (running, clients):
        with deaf_client(running.server("talker")) as deaf:
            await listen(running, deaf, era, LOUD)
            await go_on(clients)
            before = peak(running)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(deaf.disconnected)
                for _ in range(10):
                    await change(clients[0], LOUD, times=10, size=4000)
                    await go_on(clients[1:])
        assert await measured(running, "mcproxy_upstream_notifications_total", kind="updated") > 20_000
        while await measured(running, "mcproxy_streams") != OTHERS:  # it is counted a moment after it was cut off
            await anyio.lowlevel.checkpoint()
        assert peak(running) - before < 16 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="what a process takes is read from /proc")
async def test_r23_a_client_that_calls_and_never_reads_is_disconnected_and_harms_no_other(tmp_path: Path) -> None:
    large = modern.request(1, "tools/call", {"name": "say", "arguments": {"bytes": 4 * MIB}})

    async def call_and_never_read(url: str) -> None:
        with deaf_client(url) as deaf:
            for _ in range(25):
                deaf.post(modern.headers_of(large), large)
            await deaf.disconnected()

    async with talking(tmp_path) as (running, clients):
        await go_on(clients)
        before = peak(running)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(call_and_never_read, running.server("talker"))
            await go_on(clients)
        await go_on(clients)
        assert peak(running) - before < 64 * MIB
