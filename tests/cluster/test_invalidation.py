"""The twin of `mcproxy.cluster.invalidation`; and three gateways, one of which does what the others have to know of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcproxy.call.clients import ListChanged, ResourceUpdated
from mcproxy.call.upstreams import UpstreamChanged
from mcproxy.cluster.events import (
    ClusterEvent,
    GrantChanged,
    SessionEnded,
    StaleAccess,
    StaleAll,
    StaleList,
    StaleReads,
    StaleResource,
)
from mcproxy.cluster.invalidation import Invalidation
from mcproxy.protocol.methods import Kind
from tests.cluster.conftest import RedisServer
from tests.cluster.replicas import Cluster, cluster
from tests.cluster.upstream import URI, SharedUpstream, shared_upstream
from tests.fakes.clients.raw import RawClient, over_http
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


@dataclass
class Remembering:
    """Implements `Memories` and `GrantMemory`, and says what it was told."""

    told: list[object] = field(default_factory=list)

    def take_note(self, change: UpstreamChanged) -> None:
        self.told.append(change)

    def forget_reads(self, upstream: str | None = None) -> None:
        self.told.append(f"forget {upstream}")

    def hearer(self) -> Invalidation:
        return Invalidation(
            self,
            lambda: self.told.append("judge"),
            lambda: self.told.append("reload"),
            self.told.append,
            lambda: self.told.append("write"),
            self,
        )

    def on_change(self, upstream: str, principal: str) -> None:
        self.told.append(f"grant of {principal} at {upstream}")

    def on_gap(self) -> None:
        self.told.append("grants")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (StaleResource("up", "memo:a"), [UpstreamChanged("up", None, ResourceUpdated("memo:a"))]),
        (StaleList("up", "tools"), [UpstreamChanged("up", None, ListChanged(Kind.TOOLS))]),
        (StaleReads("up"), ["forget up"]),
        (StaleAccess(), ["reload", "judge"]),
        (StaleAll(), ["write", "grants", "forget None", "reload", "judge"]),
        (SessionEnded("key"), ["key"]),
        (GrantChanged("up", "ann"), ["grant of ann at up"]),
    ],
)
def test_each_event_makes_what_it_concerns_be_looked_up_again(event: ClusterEvent, expected: list[object]) -> None:
    memories = Remembering()
    memories.hearer().on_cluster_event(event)
    assert memories.told == expected


def test_after_a_gap_all_counts_as_out_of_date() -> None:
    memories = Remembering()
    memories.hearer().on_gap()
    assert memories.told == ["write", "grants", "forget None", "reload", "judge"]


@pytest.fixture
async def upstream() -> AsyncIterator[SharedUpstream]:
    async with shared_upstream() as running:
        yield running


@pytest.fixture
async def three(redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path) -> AsyncIterator[Cluster]:
    await redis_server.start()
    cache = {"ttl": {"*": 600}, "invalidate_on_tool_calls": True}
    async with cluster(tmp_path, {"up": {"url": upstream.url, "cache": cache}}, redis_server.url) as running:
        yield running


async def text(client: RawClient) -> str:
    result: Any = await client.result("resources/read", {"uri": f"up+{URI}"})
    return str(result["contents"][0]["text"])


async def test_a_call_at_one_replica_that_may_have_written_drops_what_others_have_cached(
    three: Cluster, upstream: SharedUpstream
) -> None:
    first, second, third = (f"{one.url}/mcp" for one in three.replicas)
    async with over_http(first) as one, over_http(second) as two, over_http(third) as another:
        for client in (one, two, another):
            await client.initialize()
            assert await text(client) == "0"
        upstream.text = "written, and announced to nobody"
        assert await text(two) == "0", "it is cached"
        await one.call("up__count", {"key": "write"})
        with anyio.fail_after(GUARD):
            for client in (two, another):
                while await text(client) == "0":
                    await anyio.lowlevel.checkpoint()
