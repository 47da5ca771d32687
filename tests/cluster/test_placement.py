"""The twin of `mcproxy.cluster.placement`: one child for three real gateways (`placement: one`)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcproxy.cluster.envelope import ALIVE, Envelopes, HopEnvelope
from mcproxy.cluster.hop import MOVED, OUTCOME_FIELD, REFUSED, Hops
from mcproxy.cluster.listener import InternalListener
from mcproxy.cluster.members import Member
from mcproxy.cluster.placement import OwnerGateway, Placement
from mcproxy.http import server as http
from mcproxy.sealing import Sealer
from mcproxy.settings import Cluster as ClusterSettings
from mcproxy.settings import Proxy, Settings, UpstreamSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.supervisor import Supervisor
from tests.cluster.conftest import RedisServer
from tests.cluster.replicas import Cluster, cluster, knows, replica, replica_settings
from tests.fakes.clients.raw import RawClient, over_http
from tests.fakes.servers import sdk, shared_child
from tests.processes import descendants
from tests.system.running import Gateway, Json, configuration, gateway
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

UPDATED, GREW, SAID = (f"notifications/{name}" for name in ("resources/updated", "tools/list_changed", "message"))


def child(folder: Path) -> Json:
    """A server that is to run once for all, and writes the process id of each start into a file."""
    return {
        "command": sys.executable,
        "args": [str(Path(shared_child.__file__)), str(folder / "starts")],
        "placement": "one",
        "required": True,
    }


def starts(folder: Path) -> list[str]:
    return (folder / "starts").read_text().split()


def is_running(process: str) -> bool:
    return Path(f"/proc/{process}").exists()


async def only_living(folder: Path) -> str:
    """The one child that lives, once the others have ended.

    More may have been started while the replicas came to know each other, and noted their start in any order.
    """
    while True:
        living = list(filter(is_running, starts(folder)))
        if len(living) == 1:
            return living[0]
        await anyio.sleep(0.02)


async def pid(client: RawClient) -> str:
    """The process that answers."""
    answer = await client.call("up__pid")
    assert "result" in answer, answer
    return str(answer["result"]["content"][0]["text"])


@pytest.fixture
async def three(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    await redis_server.start()
    asking = {"command": sys.executable, "args": [sdk.__file__, "stdio"], "placement": "one", "required": True}
    upstreams = {"up": child(tmp_path), "sdk": asking}
    async with cluster(tmp_path, upstreams, redis_server.url, ends_well=False) as running:
        yield running


@asynccontextmanager
async def clients(replicas: list[Gateway]) -> AsyncIterator[list[RawClient]]:
    """One of each replica, which accepts what it is asked."""
    answers = {"elicitation/create": {"action": "accept", "content": {"name": "Ada"}}}
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(over_http(f"{one.url}/mcp", answers=answers)) for one in replicas]
        for each in made:
            await each.initialize()
        yield made


async def test_one_child_serves_all_replicas_and_each_hears_what_it_says(three: Cluster, tmp_path: Path) -> None:
    with anyio.fail_after(GUARD):
        async with clients(three.replicas) as each:
            running = {await pid(client) for client in each}
            assert running == {await only_living(tmp_path)}
            for client in each:
                await client.result("resources/subscribe", {"uri": f"up+{shared_child.URI}"})
                await client.result("logging/setLevel", {"level": "debug"})
            for client in each:
                await client.call("up__change")
                await client.call("up__grow")
            for client in each:
                assert len(await client.hears(UPDATED, 3)) == 3
                await client.hears(GREW)
                names = {tool["name"] for tool in (await client.result("tools/list"))["tools"]}
                while not {"up__grown4", "up__grown5", "up__grown6"} <= names:
                    names = {tool["name"] for tool in (await client.result("tools/list"))["tools"]}
                await client.call("up__log")
                assert (await client.hears(SAID))[0]["data"] == "said by the child"
            assert running == {await pid(client) for client in each}


async def test_what_the_child_asks_in_a_call_is_asked_at_the_replica_that_the_call_came_to(three: Cluster) -> None:
    with anyio.fail_after(GUARD):
        async with clients(three.replicas) as each:
            for client in each:
                answer = await client.call("sdk__greet")
                assert answer["result"]["content"][0]["text"] == "hello Ada"
                reports = await client.call("sdk__count", progressToken="t")
                assert "result" in reports
                assert len(client.all_of("notifications/progress")) == 3
            assert [len(client.all_of("elicitation/create")) for client in each] == [1, 1, 1]


async def test_the_next_replica_starts_the_child_when_the_one_that_ran_it_dies(three: Cluster, tmp_path: Path) -> None:
    with anyio.fail_after(2 * GUARD):
        async with clients(three.replicas) as each:
            first = await pid(each[0])
            owner = next(one for one in three.replicas if int(first) in descendants(one.process.pid))
            others = [client for one, client in zip(three.replicas, each, strict=True) if one is not owner]
            for client in others:
                await client.result("resources/subscribe", {"uri": f"up+{shared_child.URI}"})
            owner.process.kill()
            await owner.process.wait()
            second = await pid_again(others[0])
            assert second != first
            assert await pid_again(others[1]) == second
            for client in others:
                before = len(client.all_of(UPDATED))
                await others[0].call("up__change")
                await client.hears(UPDATED, before + 1)
            assert await only_living(tmp_path) == second


async def pid_again(client: RawClient) -> str:
    """The process that answers, once one does: calls fail from when their child died until another runs."""
    while "error" in (answer := await client.call("up__pid")):
        assert "up" in answer["error"]["message"]
    return str(answer["result"]["content"][0]["text"])


async def test_a_replica_that_shuts_down_hands_its_child_over_and_no_call_of_others_fails(
    three: Cluster, tmp_path: Path
) -> None:
    with anyio.fail_after(2 * GUARD):
        async with clients(three.replicas) as each:
            first = await pid(each[0])
            owner = next(one for one in three.replicas if int(first) in descendants(one.process.pid))
            others = [client for one, client in zip(three.replicas, each, strict=True) if one is not owner]
            owner.process.terminate()
            found = {first}
            while found == {first}:
                found = {await pid(client) for client in others}
            await owner.process.wait()
            assert {await pid(client) for client in others} == {await only_living(tmp_path)}


async def test_a_child_runs_at_a_replica_that_has_it_where_replicas_differ_as_during_a_rollout(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    await redis_server.start()
    # Rendezvous hashing over both would give some of them to the other.
    upstreams = {f"up{number}": child(tmp_path) for number in range(6)}
    settings = {"member_ttl": 2}
    async with (
        replica(tmp_path / "old", replica_settings({}, redis_server.url, settings)) as old,
        replica(tmp_path / "new", replica_settings(upstreams, redis_server.url, settings)) as new,
    ):
        await knows(old, 1)
        assert len(descendants(new.process.pid)) > len(upstreams)
        assert descendants(old.process.pid) == []


async def test_r74_without_a_cluster_a_child_of_one_placement_runs_as_any_other(tmp_path: Path) -> None:
    async with gateway(tmp_path, configuration({"up": child(tmp_path)})) as alone, clients([alone]) as (client,):
        assert int(await pid(client)) in descendants(alone.process.pid)
    assert len(starts(tmp_path)) == 1


@pytest.mark.parametrize(
    ("wrong", "told"), [({"seconds": -60.0}, "the clocks of the replicas differ"), ({"word": "gossip"}, "does not say")]
)
async def test_a_replica_whose_owner_refuses_its_envelopes_shows_why_and_no_word_of_the_owners(
    wrong: dict[str, Any], told: str
) -> None:
    own, owner = Sealer(b"secret", label="a"), Sealer(b"secret", label="b")
    spec = UpstreamSettings(name="up", prefix="up", command="never", placement="one")
    metrics = Metrics()

    async def refuse(request: http.Request) -> http.Answered:
        return http.Response(REFUSED, b"gossip", {OUTCOME_FIELD: wrong["word"]})

    async def serve(request: http.Request, envelope: HopEnvelope) -> http.Answered:
        raise AssertionError("nothing is served")

    listener = InternalListener(Envelopes(owner), serve, Proxy)
    if "word" in wrong:
        listener.answer = refuse  # type: ignore[method-assign]  # as a replica of another version might
    envelopes = Envelopes(own, lambda: time.time() + wrong.get("seconds", 0.0))
    with anyio.fail_after(GUARD), closing(Hops(metrics)) as hops:
        async with (
            listener.listening(ClusterSettings(listen="127.0.0.1:0"), None) as port,
            anyio.create_task_group() as tasks,
        ):
            member = Member("b", f"http://127.0.0.1:{port}", "", "", "")
            placement = Placement(lambda: Settings(upstreams=(spec,)), OneOwner(member), envelopes, hops, runs_nothing)
            placement._is_serving.set()
            upstream = Supervisor(spec, Proxy(), lambda event: None, metrics, connect=placement.connected)
            tasks.start_soon(upstream.run)
            while upstream.status.error is None:
                await anyio.lowlevel.checkpoint()
            assert told in upstream.status.error
            assert "gossip" not in upstream.status.error
            tasks.cancel_scope.cancel()


class Drifting(Envelopes):
    """Of a replica whose clock is such that only the question whether the owner lives arrives in time."""

    def seal(self, envelope: HopEnvelope, receiver: str, body: bytes) -> bytes:
        self._wall = time.time if envelope.target == ALIVE else lambda: time.time() - 60
        return super().seal(envelope, receiver, body)


async def test_an_owner_that_refuses_what_comes_after_it_was_found_is_told_as_the_reason() -> None:
    own, owner = Sealer(b"secret", label="a"), Sealer(b"secret", label="b")
    spec = UpstreamSettings(name="up", prefix="up", command="never", placement="one")
    metrics = Metrics()

    async def serve(request: http.Request, envelope: HopEnvelope) -> http.Answered:
        assert envelope.target == ALIVE
        return http.Response(204, b"")

    listener = InternalListener(Envelopes(owner), serve, Proxy)
    with anyio.fail_after(GUARD), closing(Hops(metrics)) as hops:
        async with (
            listener.listening(ClusterSettings(listen="127.0.0.1:0"), None) as port,
            anyio.create_task_group() as tasks,
        ):
            member = OneOwner(Member("b", f"http://127.0.0.1:{port}", "", "", ""))
            placement = Placement(lambda: Settings(upstreams=(spec,)), member, Drifting(own), hops, runs_nothing)
            placement._is_serving.set()
            upstream = Supervisor(spec, Proxy(), lambda event: None, metrics, connect=placement.connected)
            tasks.start_soon(upstream.run)
            while upstream.status.error is None:
                await anyio.lowlevel.checkpoint()
            assert "the clocks of the replicas differ" in upstream.status.error
            tasks.cancel_scope.cancel()


async def test_a_link_whose_owner_ceases_to_run_the_child_while_it_is_made_is_made_to_the_next_owner() -> None:
    own, owner = Sealer(b"secret", label="a"), Sealer(b"secret", label="b")
    spec = UpstreamSettings(name="up", prefix="up", command="never", placement="one")
    discovered = b'{"supportedVersions": ["2026-07-28"], "capabilities": {}, "resultType": "complete"}'
    requests = 0

    async def serve(request: http.Request, envelope: HopEnvelope) -> http.Answered:
        nonlocal requests
        if envelope.target == ALIVE:
            return http.Response(204, b"")
        requests += 1
        if requests == 1:
            return http.Response(MOVED, b"", {OUTCOME_FIELD: "elsewhere"})
        asked = json.loads(request.received or b"")
        answer = b'{"jsonrpc": "2.0", "id": %s, "result": %s}' % (json.dumps(asked["id"]).encode(), discovered)
        return http.Response(200, answer, {"Content-Type": "application/json"})

    listener = InternalListener(Envelopes(owner), serve, Proxy)
    with anyio.fail_after(GUARD), closing(Hops(Metrics())) as hops:
        async with listener.listening(ClusterSettings(listen="127.0.0.1:0"), None) as port:
            member = Member("b", f"http://127.0.0.1:{port}", "", "", "")
            placement = Placement(
                lambda: Settings(upstreams=(spec,)), OneOwner(member), Envelopes(own), hops, runs_nothing
            )
            placement._is_serving.set()
            async with placement.connected(LinkContext(spec, Metrics(), lambda event: None)) as link:
                assert not link.is_closed
                assert requests == 2


class OneOwner:
    """Implements `PlacingMembers`: another replica takes all keys."""

    are_known = True

    def __init__(self, member: Member) -> None:
        self._member = member
        self.own = Member("a", "", "", "", "")

    def owner(self, key: str, placed: str = "") -> Member | None:
        return self._member

    def lose(self, label: str) -> None:
        return


def runs_nothing(settings: Settings) -> AbstractAsyncContextManager[OwnerGateway]:
    raise AssertionError
