"""What goes on while Redis is away: the table of docs/how-to/run-several-replicas.md, row by row, with three gateways.

Redis is reached through a proxy that a test has hold, delay or refuse what passes. That calls do not wait for it is
seen by counts: what was asked of it in vain is less than the calls that were answered meanwhile.
"""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from mcproxy.cluster.store.protocol import Store
from mcproxy.cluster.store.redis_store import opened_store
from tests.cluster.conftest import RedisProxy, RedisServer
from tests.cluster.replicas import Cluster, cluster
from tests.cluster.upstream import URI, SharedUpstream, shared_upstream
from tests.fakes.clients.raw import RawClient, over_http
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

CALLS = 300
BY_THE_CLOCK = 30
"""Failures a second, at most, of what three replicas ask of Redis whether there are calls or not."""
DELAY = 0.2


@pytest.fixture
async def upstream() -> AsyncIterator[SharedUpstream]:
    async with shared_upstream() as running:
        yield running


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[RedisProxy]:
    await redis_server.start()
    proxy = RedisProxy(redis_server.port)
    async with proxy.serving():
        yield proxy


LIMITS = {
    "rules": {
        "leased": {"rate": "100000/s"},
        "divided": {"tools": ["hold"], "daily": 30},
        "closed": {"tools": ["ask"], "daily": 1000, "exact": True, "fail": "closed"},
    }
}


@pytest.fixture
async def three(redis: RedisProxy, upstream: SharedUpstream, tmp_path: Path) -> AsyncIterator[Cluster]:
    cache = {"ttl": {"*": 600}, "invalidate_on_tool_calls": True}
    async with cluster(
        tmp_path,
        {"up": {"url": upstream.url, "cache": cache}},
        f"redis://127.0.0.1:{redis.port}/0",
        access={"limits": LIMITS},
        more={"timeout": 1},
        ends_well=False,
    ) as running:
        yield running


@asynccontextmanager
async def clients(three: Cluster) -> AsyncIterator[list[RawClient]]:
    """One of each replica, each with a session there."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(over_http(f"{one.url}/mcp")) for one in three.replicas]
        for client in made:
            await client.initialize()
        yield made


async def failures(three: Cluster) -> float:
    """What was asked of Redis in vain, by all replicas."""
    total = 0.0
    async with aiohttp.ClientSession() as http:
        for one in three.replicas:
            async with http.get(f"{one.url}/metrics") as response:
                found = re.search(r"^mcproxy_cluster_store_failures_total (\S+)$", await response.text(), re.MULTILINE)
                assert found is not None
                total += float(found[1])
    return total


async def called(callers: Sequence[RawClient], prefix: str) -> None:
    """Calls all of them in turns; each is answered."""
    for number in range(CALLS):
        answer = await callers[number % len(callers)].call("up__count", {"key": f"{prefix}-{number}"})
        assert answer["result"]["content"][0]["text"] == f"{prefix}-{number}"


@pytest.mark.parametrize("trouble", ["hangs", "is gone", "is slow"])
async def test_r72_calls_and_sessions_go_on_while_redis_is_away_and_do_not_wait_for_it(
    three: Cluster, redis: RedisProxy, upstream: SharedUpstream, trouble: str
) -> None:
    async with clients(three) as callers, over_http(f"{three.url}/mcp") as dealt_out:
        await dealt_out.initialize()
        match trouble:
            case "hangs":
                redis.hold()
            case "is gone":
                redis.refuse()
            case _:
                redis.delay = DELAY
        before, began = await failures(three), anyio.current_time()
        with anyio.fail_after(2 * GUARD):
            await called(callers, "own")
            # nginx deals these out to all: each replica sends on what is another's.
            await called([dealt_out], "sent-on")
        by_the_clock = BY_THE_CLOCK * (anyio.current_time() - began)
        assert await failures(three) - before < CALLS / 2 + by_the_clock
        redis.delay = 0
        redis.release()
        redis.admit()
        await called(callers, "after")
    assert set(upstream.executed.values()) == {1}


async def test_limits_are_divided_while_redis_is_away_or_refuse_if_they_say_so(
    three: Cluster, redis: RedisProxy, upstream: SharedUpstream
) -> None:
    upstream.let_go()
    async with clients(three) as callers:
        redis.refuse()
        await anyio.lowlevel.checkpoint()
        admitted = [sum(["result" in await each.call("up__hold") for _ in range(30)]) for each in callers]
        assert 30 - 3 <= sum(admitted) <= 30 + 3, "each has a third, and a chunk before it knew that Redis is away"
        for each in callers:
            refused: Any = await each.call("up__ask", {})
            assert "are not available" in refused["error"]["message"] or "calls a day" in refused["error"]["message"]


async def test_what_a_cache_may_have_missed_while_redis_was_away_is_dropped_when_it_is_back(
    three: Cluster, redis: RedisProxy, redis_server: RedisServer, upstream: SharedUpstream
) -> None:
    async def text(client: RawClient) -> str:
        result: Any = await client.result("resources/read", {"uri": f"up+{URI}"})
        return str(result["contents"][0]["text"])

    async with clients(three) as callers:
        for each in callers:
            assert await text(each) == "0"
        redis_server.stop()
        redis.refuse()
        upstream.text = "written"
        await callers[0].call("up__count", {"key": "write"})
        assert await text(callers[0]) == "written", "the replica that made the call knows"
        assert await text(callers[1]) == "0", "the others cannot yet"
        await redis_server.start()
        redis.admit()
        with anyio.fail_after(GUARD):
            for each in callers[1:]:
                while await text(each) == "0":
                    await anyio.lowlevel.checkpoint()


async def test_a_session_whose_replica_dies_while_redis_is_away_is_refused_and_its_client_initializes_anew(
    three: Cluster, redis: RedisProxy
) -> None:
    async with aiohttp.ClientSession() as http:
        urls = [f"{one.url}/mcp" for one in three.replicas]
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
        info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info}
        async with http.post(urls[0], json=opening, headers=headers) as response:
            session = {**headers, "Mcp-Session-Id": response.headers["Mcp-Session-Id"]}
        redis.refuse()
        three.replicas[0].process.send_signal(signal.SIGKILL)
        await three.replicas[0].process.wait()
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        for url in urls[1:]:
            async with http.post(url, json=ping, headers=session) as response:
                assert response.status == 404
            async with http.post(url, json=opening, headers=headers) as response:
                assert response.status == 200


async def test_r72_a_subscription_that_was_made_while_redis_was_away_is_recorded_when_it_is_back(
    three: Cluster, redis: RedisProxy, redis_server: RedisServer, upstream: SharedUpstream
) -> None:
    async with over_http(f"{three.replicas[0].url}/mcp") as client, opened_store(redis_server.url, GUARD) as store:
        await client.initialize()
        before = await sessions_in(store)
        redis.refuse()
        await client.result("resources/subscribe", {"uri": f"up+{URI}"})
        with anyio.fail_after(GUARD):
            await upstream.wait_subscribed(1)
            upstream.change("1")
            await client.hears("notifications/resources/updated")
            assert await sessions_in(store) == before
            redis.admit()
            while await sessions_in(store) == before:
                await anyio.lowlevel.checkpoint()


async def sessions_in(store: Store) -> int:
    """How many records of sessions Redis holds."""
    found = await store.run("return #redis.call('KEYS', 'mcproxy:session:*')", [], [])
    assert isinstance(found, int)
    return found
