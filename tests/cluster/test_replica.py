"""The twin of `mcproxy.cluster.replica`: three gateways, nginx and Redis, as their users run them."""

from __future__ import annotations

import itertools
import json
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from mcproxy.http.server.server import BACKLOG
from mcproxy.protocol.eras import LATEST
from mcproxy.sealing import label_of
from tests.cluster.conftest import RedisProxy, RedisServer
from tests.cluster.replicas import Cluster, cluster, knows, nginx_homes, port_of, replica, replica_settings
from tests.cluster.upstream import SharedUpstream, shared_upstream
from tests.depth import IN_CI
from tests.fakes.certificates import Authority
from tests.fakes.clients.raw import over_http
from tests.ports import free_port
from tests.system.running import Gateway, web_server
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

FROZEN = 20
"""Seconds after which a replica is asked whether it lives, where a test freezes one for less."""
IDS = itertools.count(1000)
Json = dict[str, Any]
META: Json = {
    "io.modelcontextprotocol/protocolVersion": LATEST,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
}


@pytest.fixture
async def upstream() -> AsyncIterator[SharedUpstream]:
    async with shared_upstream() as running:
        yield running


@pytest.fixture
async def three(redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path) -> AsyncIterator[Cluster]:
    await redis_server.start()
    async with cluster(tmp_path, {"up": {"url": upstream.url}}, redis_server.url, ends_well=False) as running:
        yield running


ALTERNATING = 10_000 if IN_CI else 1_000
"""Calls of sessions that alternate between replicas."""


class Sessions:
    """A client of a handshake session that chooses the replica of each request."""

    def __init__(self, http: aiohttp.ClientSession, replicas: Cluster) -> None:
        self._http = http
        self.urls = [f"{one.url}/mcp" for one in replicas.replicas]
        self.headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}

    async def open(self, at: int, capabilities: Json | None = None) -> str:
        """The id of the session, which is opened at a replica."""
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities or {},
            "clientInfo": {"name": "raw", "version": "1"},
        }
        async with self.post(at, {"id": 0, "method": "initialize", "params": params}) as response:
            assert response.status == 200
            self.headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
        async with self.post(at, {"method": "notifications/initialized"}) as response:
            assert response.status == 202
        return self.headers["Mcp-Session-Id"]

    def post(self, at: int, message: Json) -> Any:
        return self._http.post(self.urls[at], json={"jsonrpc": "2.0", **message}, headers=self.headers)

    async def ask(self, at: int, method: str, params: Json | None = None, id: int | None = None) -> Json:
        # No id twice: a request to a replica that was frozen may be in flight still.
        id = next(IDS) if id is None else id
        async with self.post(at, {"id": id, "method": method, "params": params or {}}) as response:
            assert response.status == 200, await response.text()
            answer: Json = await response.json()
            return answer

    def listen(self, at: int, **headers: str) -> Any:
        return self._http.get(self.urls[at], headers={**self.headers, "Accept": "text/event-stream", **headers})

    def end(self, at: int) -> Any:
        return self._http.delete(self.urls[at], headers=self.headers)


async def test_r70_a_session_is_served_whichever_replica_its_requests_reach(
    three: Cluster, upstream: SharedUpstream
) -> None:
    async with over_http(f"{three.url}/mcp") as client:
        await client.initialize()
        for number in range(12):
            answer = await client.call("up__count", {"key": f"{number}"})
            assert answer["result"]["content"][0]["text"] == f"{number}"
    assert set(upstream.executed.values()) == {1}


@pytest.mark.timeout(600)
async def test_r70_alternating_calls_of_sessions_are_each_executed_once_and_none_fails(
    three: Cluster, upstream: SharedUpstream
) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        sessions = [Sessions(http, three) for _ in range(10)]
        for number, session in enumerate(sessions):
            await session.open(number % 3)

        async def work(number: int) -> None:
            for turn in range(ALTERNATING // len(sessions)):
                key = f"{number}-{turn}"
                answer = await sessions[number].ask(
                    turn % 3, "tools/call", {"name": "up__count", "arguments": {"key": key}}
                )
                assert answer["result"]["content"][0]["text"] == key

        async with anyio.create_task_group() as tasks:
            for number in range(len(sessions)):
                tasks.start_soon(work, number)
    assert len(upstream.executed) == ALTERNATING
    assert set(upstream.executed.values()) == {1}


@asynccontextmanager
async def just_come(folder: Path, upstream: SharedUpstream, redis: str) -> AsyncIterator[Cluster]:
    """Two replicas, of which the first has not announced itself since the second came."""
    settings = replica_settings({"up": {"url": upstream.url}}, redis, {"member_ttl": 600})
    async with replica(folder / "old", settings) as old, replica(folder / "new", settings) as new:
        try:
            yield Cluster([old, new], "", folder)
        finally:
            for one in (old, new):
                one.stop()


async def test_r70_a_session_of_a_replica_that_has_just_come_is_served_there(
    redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path
) -> None:
    await redis_server.start()
    async with just_come(tmp_path, upstream, redis_server.url) as both, aiohttp.ClientSession() as http:
        client = Sessions(http, both)
        await client.open(at=1)
        answer = await client.ask(0, "tools/call", {"name": "up__count", "arguments": {"key": "once"}})
        assert "result" in answer
        async with http.get(f"{both.replicas[0].url}/metrics") as metrics:
            assert "mcproxy_cluster_adoptions_total{" not in await metrics.text()
    assert upstream.executed == {"once": 1}


async def test_r70_a_call_parked_at_a_replica_that_has_just_come_is_resumed_there(
    redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path
) -> None:
    await redis_server.start()
    async with just_come(tmp_path, upstream, redis_server.url) as both, aiohttp.ClientSession() as http:
        call: Json = {"name": "up__ask", "arguments": {"key": "parked"}, "_meta": META}
        asked = await stateless(http, both, 1, "tools/call", call)
        answers = {key: {"action": "accept", "content": {}} for key in asked["result"]["inputRequests"]}
        more = {"inputResponses": answers, "requestState": asked["result"]["requestState"]}
        answer = await stateless(http, both, 0, "tools/call", call | more)
        assert "accept" in answer["result"]["content"][0]["text"]
    assert upstream.executed == {"parked": 1}


async def test_an_update_of_a_resource_subscribed_at_one_replica_reaches_the_stream_at_another_once(
    three: Cluster, upstream: SharedUpstream
) -> None:
    async with aiohttp.ClientSession() as http:
        client = Sessions(http, three)
        await client.open(0)
        async with client.listen(1) as stream:
            assert "result" in await client.ask(2, "resources/subscribe", {"uri": "up+shared:memo"})
            with anyio.fail_after(GUARD):
                await upstream.wait_subscribed(1)
            for number in range(3):
                upstream.change(f"{number}")
                assert await updates(stream, 1) == ["up+shared:memo"]
            # Whatever came twice would come before the answer to this.
            assert "result" in await client.ask(0, "ping")
            upstream.change("last")
            assert await updates(stream, 1) == ["up+shared:memo"]


async def updates(stream: aiohttp.ClientResponse, many: int) -> list[str]:
    return [message["params"]["uri"] for message in await messages(stream, many)]


async def messages(stream: aiohttp.ClientResponse, many: int) -> list[Json]:
    """The next messages of a stream; comments and primers apart."""
    found: list[Json] = []
    with anyio.fail_after(GUARD):
        while len(found) < many:
            line = await stream.content.readline()
            assert line, "the stream ended"
            # A list that has just become known at a replica is announced as well.
            if line.startswith(b"data: {") and b"list_changed" not in line:
                found.append(json.loads(line.removeprefix(b"data: ")))
    return found


async def test_an_elicitation_asked_at_one_replica_is_answered_at_another(three: Cluster) -> None:
    async with over_http(
        f"{three.url}/mcp", answers={"elicitation/create": {"action": "accept", "content": {}}}
    ) as client:
        await client.initialize()
        for _ in range(4):
            answer = await client.call("up__ask", {"key": "k"})
            assert "accept" in answer["result"]["content"][0]["text"]


async def test_a_session_that_was_ended_at_one_replica_is_unknown_at_all(three: Cluster) -> None:
    async with aiohttp.ClientSession() as http:
        client = Sessions(http, three)
        await client.open(0)
        async with client.end(1) as response:
            assert response.status == 204
        for at in range(3):
            async with client.post(at, {"id": 1, "method": "ping"}) as response:
                assert response.status == 404


async def test_r70_a_parked_call_is_resumed_through_another_replica_once(
    three: Cluster, upstream: SharedUpstream
) -> None:
    async with aiohttp.ClientSession() as http:
        call: Json = {"name": "up__ask", "arguments": {"key": "parked"}, "_meta": META}
        asked = await stateless(http, three, 0, "tools/call", call)
        assert asked["result"]["resultType"] == "input_required"
        answers = {key: {"action": "accept", "content": {}} for key in asked["result"]["inputRequests"]}
        retry = {**call, "inputResponses": answers, "requestState": asked["result"]["requestState"]}
        answer = await stateless(http, three, 2, "tools/call", retry)
        assert "accept" in answer["result"]["content"][0]["text"]
        for at in range(3):
            assert "error" in await stateless(http, three, at, "tools/call", retry)
    assert upstream.executed["parked"] == 1


async def stateless(http: aiohttp.ClientSession, replicas: Cluster, at: int, method: str, params: Json) -> Json:
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": LATEST,
        "Mcp-Method": method,
        **({"Mcp-Name": params["name"]} if "name" in params else {}),
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with http.post(f"{replicas.replicas[at].url}/mcp", json=message, headers=headers) as response:
        answer: Json = await response.json()
        return answer


async def test_r71_a_session_whose_replica_was_killed_goes_on_at_another_with_its_subscriptions(
    three: Cluster, upstream: SharedUpstream
) -> None:
    async with aiohttp.ClientSession() as http:
        client = Sessions(http, three)
        id = await client.open(0)
        assert label_of(id)
        assert "result" in await client.ask(1, "resources/subscribe", {"uri": "up+shared:memo"})
        three.replicas[0].process.kill()
        await three.replicas[0].process.wait()
        async with client.listen(1) as stream:
            assert await updates(stream, 1) == ["up+shared:memo"], "it may have missed one"
            assert "result" in await client.ask(2, "ping")
            upstream.change("after")
            assert await updates(stream, 1) == ["up+shared:memo"]


async def test_r71_sessions_of_a_replica_that_was_killed_go_on_where_another_has_its_address(
    redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path
) -> None:
    """As where a service is started again at once: until then it is known by the name that it had."""
    await redis_server.start()
    upstreams = {"up": {"url": upstream.url}}
    settings = replica_settings(upstreams, redis_server.url, {"listen": f"127.0.0.1:{free_port()}"})
    async with (
        cluster(tmp_path, upstreams, redis_server.url, size=1) as one,
        replica(tmp_path / "killed", settings, ends_well=False) as killed,
        aiohttp.ClientSession() as http,
    ):
        await knows(one.replicas[0], 1)
        clients = [Sessions(http, one) for _ in range(8)]
        for client in clients:
            client.urls.append(f"{killed.url}/mcp")
            await client.open(1)
            await client.ask(1, "resources/subscribe", {"uri": "up+shared:memo"})
        killed.process.kill()
        await killed.process.wait()
        async with replica(tmp_path / "again", settings) as again:
            for client in clients:
                client.urls[1] = f"{again.url}/mcp"
                assert "result" in await client.ask(1, "ping")
                assert "result" in await client.ask(0, "ping")


async def test_r71_sessions_of_a_replica_that_was_killed_move_with_their_streams_to_one_that_comes(
    redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path
) -> None:
    await redis_server.start()
    upstreams = {"up": {"url": upstream.url}}
    async with (
        cluster(tmp_path, upstreams, redis_server.url, size=2, ends_well=False) as two,
        aiohttp.ClientSession() as http,
    ):
        # Rendezvous hashing has some of them move, and others stay.
        clients = [Sessions(http, two) for _ in range(8)]
        for client in clients:
            await client.open(0)
        two.replicas[0].process.kill()
        await two.replicas[0].process.wait()
        settings = replica_settings(upstreams, redis_server.url)
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(client.listen(1)) for client in clients]
            late = await stack.enter_async_context(replica(tmp_path / "late", settings, ends_well=False))
            async with anyio.create_task_group() as tasks:
                for client, stream in zip(clients, streams, strict=True):
                    client.urls.append(f"{late.url}/mcp")
                    assert "result" in await client.ask(2, "resources/subscribe", {"uri": "up+shared:memo"})
                    tasks.start_soon(hears_update, client, stream)
                upstream.change("after")


async def hears_update(client: Sessions, stream: aiohttp.ClientResponse) -> None:
    """Returns when a client is told of a change; it listens again, at the same replica, if its stream ends."""
    with anyio.fail_after(GUARD):
        while b"resources/updated" not in (line := await stream.content.readline()):
            if not line:
                async with client.listen(1) as again:
                    return await hears_update(client, again)
        return None


async def test_a_session_that_was_ended_stays_ended_when_its_replica_is_killed(three: Cluster) -> None:
    async with aiohttp.ClientSession() as http:
        client = Sessions(http, three)
        await client.open(0)
        async with client.end(1) as response:
            assert response.status == 204
        async with client.post(1, {"id": 1, "method": "ping"}) as response:
            assert response.status == 404
        three.replicas[0].process.kill()
        await three.replicas[0].process.wait()
        for at in (1, 2):
            async with client.post(at, {"id": 1, "method": "ping"}) as response:
                assert response.status == 404


async def test_a_parked_call_whose_replica_was_killed_has_an_unknown_outcome_and_is_not_repeated(
    three: Cluster, upstream: SharedUpstream
) -> None:
    async with aiohttp.ClientSession() as http:
        call: Json = {"name": "up__ask", "arguments": {"key": "parked"}, "_meta": META}
        asked = await stateless(http, three, 0, "tools/call", call)
        three.replicas[0].process.kill()
        await three.replicas[0].process.wait()
        answers = {key: {"action": "accept", "content": {}} for key in asked["result"]["inputRequests"]}
        retry = {**call, "inputResponses": answers, "requestState": asked["result"]["requestState"]}
        for at in (1, 2):
            answer = await stateless(http, three, at, "tools/call", retry)
            assert "its outcome is unknown" in answer["error"]["message"]
    assert upstream.executed["parked"] == 1


async def test_a_call_that_runs_at_a_replica_which_is_killed_fails_and_no_other_does(
    three: Cluster, upstream: SharedUpstream
) -> None:
    async with aiohttp.ClientSession() as http:
        client, other = Sessions(http, three), Sessions(http, three)
        await client.open(0)
        await other.open(1)
        answers: list[Json] = []

        async def call(client: Sessions, at: int, key: str) -> None:
            answers.append(await client.ask(at, "tools/call", {"name": "up__hold", "arguments": {"key": key}}))

        with anyio.fail_after(GUARD):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, client, 1, "lost")
                tasks.start_soon(call, other, 2, "kept")
                await upstream.holds(2)
                three.replicas[0].process.kill()
                await three.replicas[0].process.wait()
                upstream.let_go()
        lost, kept = sorted(answers, key=lambda answer: "result" in answer)
        assert "its outcome is unknown" in lost["error"]["message"]
        assert kept["result"]["content"][0]["text"] == "kept"
    assert upstream.executed == {"lost": 1, "kept": 1}


async def test_a_stream_is_resumed_at_another_replica_without_a_gap_and_nothing_comes_twice(
    three: Cluster, upstream: SharedUpstream
) -> None:
    async with aiohttp.ClientSession() as http:
        client = Sessions(http, three)
        await client.open(0)
        async with client.listen(0) as stream:
            assert "result" in await client.ask(0, "resources/subscribe", {"uri": "up+shared:memo"})
            upstream.change("first")
            assert await updates(stream, 1) == ["up+shared:memo"]
            last = await last_id(client, stream, upstream)
        for at in (1, 2, 0):
            # Asked at the home, so that the update has been told by then, to a stream without a connection.
            upstream.change(f"missed {at}")
            assert "result" in await client.ask(0, "tools/call", {"name": "up__count", "arguments": {}})
            async with client.listen(at, **{"Last-Event-ID": last}) as stream:
                assert await updates(stream, 1) == ["up+shared:memo"]
                last = await last_id(client, stream, upstream)


async def last_id(client: Sessions, stream: aiohttp.ClientResponse, upstream: SharedUpstream) -> str:
    """The id of one more event, so that no event before it is left unread."""
    upstream.change("again")
    with anyio.fail_after(GUARD):
        while True:
            line = await stream.content.readline()
            if line.startswith(b"id: "):
                last = line.removeprefix(b"id: ").strip().decode()
            if line.startswith(b"data: {"):
                return last


async def test_r71_sixty_busy_sessions_lose_only_the_calls_of_a_replica_that_is_killed(
    three: Cluster, upstream: SharedUpstream
) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        sessions = [Sessions(http, three) for _ in range(60)]
        for number, session in enumerate(sessions):
            await session.open(number % 3)
            assert "result" in await session.ask(0, "resources/subscribe", {"uri": "up+shared:memo"})
        lost: list[int] = []

        async def call(number: int, at: int, key: str, tool: str = "up__count") -> None:
            params = {"name": tool, "arguments": {"key": f"{key}-{number}"}}
            if "error" in await sessions[number].ask(at, "tools/call", params):
                lost.append(number)

        with anyio.fail_after(GUARD):
            async with anyio.create_task_group() as tasks:
                for number in range(60):
                    tasks.start_soon(call, number, 1 + number % 2, "held", "up__hold")
                await upstream.holds(60)
                three.replicas[0].process.kill()
                await three.replicas[0].process.wait()
                upstream.let_go()
            assert sorted(lost) == list(range(0, 60, 3)), "those that lived at the replica which is gone"
            lost.clear()
            async with anyio.create_task_group() as tasks:
                for number in range(60):
                    tasks.start_soon(call, number, 1 + number % 2, "after")
            assert lost == []
            for number, session in enumerate(sessions):
                async with session.listen(1) as stream:
                    if number % 3 == 0:
                        assert await updates(stream, 1) == ["up+shared:memo"], "one may have been missed"
                    upstream.change(f"{number}")
                    assert await updates(stream, 1) == ["up+shared:memo"]
    assert set(upstream.executed.values()) == {1}


async def test_r70_calls_with_side_effects_run_once_at_the_most_while_replicas_die(
    three: Cluster, upstream: SharedUpstream
) -> None:
    sent: list[str] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        sessions = [Sessions(http, three) for _ in range(10)]
        for number, session in enumerate(sessions):
            await session.open(number % 3)

        async def work(number: int) -> None:
            for turn in range(100):
                key = f"{number}-{turn}"
                sent.append(key)
                with suppress(aiohttp.ClientError):
                    arguments = {"name": "up__count", "arguments": {"key": key}}
                    await sessions[number].ask(turn % 3, "tools/call", arguments)

        with anyio.fail_after(2 * GUARD):
            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(work, number)
                for victim, after in ((0, 300), (1, 600)):
                    await _until(partial(_reached, sent, after))
                    three.replicas[victim].process.kill()
                    await three.replicas[victim].process.wait()
    assert len(sent) == 1000
    assert set(upstream.executed.values()) == {1}
    assert upstream.executed.keys() <= set(sent)
    assert len(upstream.executed) > 300


async def test_a_frozen_replica_executes_nothing_twice_and_has_its_sessions_back_when_it_wakes(
    redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path
) -> None:
    await redis_server.start()
    soon: Json = {"member_ttl": 2}
    async with (
        cluster(tmp_path, {"up": {"url": upstream.url}}, redis_server.url, more=soon, ends_well=False) as three,
        aiohttp.ClientSession() as http,
    ):
        frozen = three.replicas[0].process
        client = Sessions(http, three)
        await client.open(0)
        assert "result" in await client.ask(0, "resources/subscribe", {"uri": "up+shared:memo"})
        frozen.send_signal(signal.SIGSTOP)
        try:
            with anyio.move_on_after(0.5):
                await client.ask(1, "tools/call", {"name": "up__count", "arguments": {"key": "stuck"}})
            for one in three.replicas[1:]:
                await one.log.says(lambda entry: entry.get("event") == "a replica is gone")
            for at in (1, 2):
                params = {"name": "up__count", "arguments": {"key": f"after-{at}"}}
                assert "result" in await client.ask(at, "tools/call", params)
            assert "result" in await client.ask(1, "resources/unsubscribe", {"uri": "up+shared:memo"})
        finally:
            frozen.send_signal(signal.SIGCONT)
        await three.replicas[0].log.says(lambda entry: "was frozen" in entry.get("event", ""))
        for at in range(3):
            params = {"name": "up__count", "arguments": {"key": f"awake-{at}"}}
            assert "result" in await client.ask(at, "tools/call", params)
    assert set(upstream.executed.values()) == {1}


async def test_a_session_that_is_opened_elsewhere_just_as_its_replica_wakes_is_left_to_that_one(
    redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path
) -> None:
    await redis_server.start()
    redis, upstreams, soon = RedisProxy(redis_server.port), {"up": {"url": upstream.url}}, {"member_ttl": 2}
    async with (
        redis.serving() as behind_proxy,
        replica(tmp_path / "home", replica_settings(upstreams, redis_server.url, soon), ends_well=False) as home,
        replica(tmp_path / "other", replica_settings(upstreams, behind_proxy, soon), ends_well=False) as other,
        aiohttp.ClientSession() as http,
        anyio.create_task_group() as tasks,
    ):
        await knows(other, 1)
        client = Sessions(http, Cluster([home, other], "", tmp_path))
        await client.open(0)
        home.process.send_signal(signal.SIGSTOP)
        try:
            await other.log.says(lambda entry: entry.get("event") == "a replica is gone")
            redis.hold(b"mcproxy:session:")
            tasks.start_soon(client.ask, 1, "ping")
            await _until(lambda: redis.held > 0)
            since = len(other.log.entries)
        finally:
            home.process.send_signal(signal.SIGCONT)
        await other.log.says(lambda entry: entry.get("event") == "a replica came", since)
        # Many announcements later, no session that came meanwhile is looked for.
        goal = redis.passed + 20
        await _until(lambda: redis.passed > goal)
        redis.release()
        with anyio.fail_after(GUARD):
            while 'adoptions_total{outcome="restored"} 1.0' not in await metrics(http, other):  # noqa: ASYNC110
                await anyio.sleep(0.05)
            while sessions_at(await metrics(http, other)):  # noqa: ASYNC110
                await anyio.sleep(0.05)


def sessions_at(shown: str) -> int:
    """The live sessions that a replica's metrics show."""
    return sum(int(float(line.split()[-1])) for line in shown.splitlines() if line.startswith("mcproxy_sessions{"))


async def test_a_replica_too_busy_to_accept_connections_keeps_its_sessions(
    redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path
) -> None:
    await redis_server.start()
    async with (
        # It is frozen here for much less than that: as one that is starved, and not as one that is dead.
        cluster(
            tmp_path,
            {"up": {"url": upstream.url}},
            redis_server.url,
            size=2,
            more={"member_ttl": FROZEN},
            ends_well=False,
        ) as two,
        aiohttp.ClientSession() as http,
    ):
        client = Sessions(http, two)
        await client.open(0)
        came = await two.replicas[1].log.says(lambda entry: entry.get("event") == "a replica came")
        busy = two.replicas[0].process
        busy.send_signal(signal.SIGSTOP)
        try:
            with filled(came["address"]):
                async with anyio.create_task_group() as tasks:
                    params = {"name": "up__count", "arguments": {"key": "late"}}
                    tasks.start_soon(client.ask, 1, "tools/call", params)
                    with anyio.fail_after(GUARD):
                        while 'outcome="unreachable"' not in await metrics(http, two.replicas[1]):  # noqa: ASYNC110
                            await anyio.sleep(0.05)
                    busy.send_signal(signal.SIGCONT)
        finally:
            busy.send_signal(signal.SIGCONT)
        shown = await metrics(http, two.replicas[1])
        for one in two.replicas:
            one.process.kill()
    assert upstream.executed == {"late": 1}
    assert "adoptions_total{" not in shown


@contextmanager
def filled(address: str) -> Iterator[None]:
    """As many connections wait to be accepted as a listener has place for."""
    host, _, port = address.rpartition("/")[2].partition(":")
    with ExitStack() as stack:
        for _ in range(BACKLOG + 1):
            waiting = stack.enter_context(closing(socket.socket()))
            waiting.setblocking(False)
            waiting.connect_ex((host, int(port)))
        yield


async def test_nginx_sends_the_requests_of_a_session_to_its_home_and_to_another_when_that_is_gone(
    redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path
) -> None:
    await redis_server.start()
    upstreams = {"up": {"url": upstream.url}}
    async with AsyncExitStack() as stack:
        replicas = []
        for number in range(1, 4):
            settings = replica_settings(upstreams, redis_server.url, {"name": f"{number}"})
            made = replica(tmp_path / f"replica{number}", settings, ends_well=False)
            replicas.append(await stack.enter_async_context(made))
        for one in replicas:
            await knows(one, 2)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        url = await stack.enter_async_context(web_server(*nginx_homes(tmp_path, [port_of(one) for one in replicas])))
        client = Sessions(http, Cluster(replicas, url, tmp_path))
        client.urls = [url]
        home = int((await client.open(0)).partition("-")[0])
        for _ in range(12):
            assert "result" in await client.ask(0, "tools/call", {"name": "up__count", "arguments": {"key": "k"}})
        for one in replicas:
            assert 'hops_total{outcome="answered"}' not in await metrics(http, one)
        replicas[home - 1].process.kill()
        await replicas[home - 1].process.wait()
        assert "result" in await client.ask(0, "tools/call", {"name": "up__count", "arguments": {"key": "k"}})
        client.headers["Mcp-Session-Id"] = f"{home % 3 + 1}-00000000.forged"
        async with client.post(0, {"id": 1, "method": "ping"}) as response:
            assert response.status == 404


async def metrics(http: aiohttp.ClientSession, one: Gateway) -> str:
    async with http.get(f"{one.url}/metrics") as response:
        return await response.text()


async def test_a_replica_that_lost_redis_alone_keeps_its_sessions(
    redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path
) -> None:
    await redis_server.start()
    redis, upstreams = RedisProxy(redis_server.port), {"up": {"url": upstream.url}}
    async with (
        redis.serving() as behind_proxy,
        replica(tmp_path / "cut-off", replica_settings(upstreams, behind_proxy)) as cut_off,
        replica(tmp_path / "other", replica_settings(upstreams, redis_server.url)) as other,
        aiohttp.ClientSession() as http,
    ):
        await knows(cut_off, 1)
        await knows(other, 1)
        client = Sessions(http, Cluster([cut_off, other], "", tmp_path))
        await client.open(0)
        redis.refuse()
        with anyio.fail_after(GUARD):
            await other.log.says(lambda entry: "but answers" in entry.get("event", ""))
        for at in (0, 1, 0):
            params = {"name": "up__count", "arguments": {"key": f"{at}"}}
            assert "result" in await client.ask(at, "tools/call", params)
        assert 'hops_total{outcome="answered"}' in await metrics(http, other)
        assert "adoptions_total{" not in await metrics(http, other)
        redis.admit()
    assert upstream.executed == {"0": 2, "1": 1}


async def test_a_rolling_restart_fails_no_call_and_loses_no_subscription(
    redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path
) -> None:
    await redis_server.start()
    async with (
        cluster(tmp_path, {"up": {"url": upstream.url}}, redis_server.url, shutdown_grace=GUARD) as running,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        sessions = [Sessions(http, running) for _ in range(6)]
        for number, session in enumerate(sessions):
            await session.open(number % 3)
            assert "result" in await session.ask(0, "resources/subscribe", {"uri": "up+shared:memo"})
        rotation, done, sent = [0, 1, 2], False, list[str]()

        async def work(number: int) -> None:
            while not done:
                sent.append(f"{number}-{len(sent)}")
                params = {"name": "up__count", "arguments": {"key": sent[-1]}}
                at = rotation[len(sent) % len(rotation)]
                assert "result" in await sessions[number].ask(at, "tools/call", params)

        with anyio.fail_after(2 * GUARD):
            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(work, number)
                for leaving in (0, 1):
                    rotation.remove(leaving)
                    # By then what was sent to it before has been answered.
                    await _until(partial(_reached, sent, len(sent) + 60))
                    running.replicas[leaving].process.terminate()
                    await running.replicas[leaving].process.wait()
                    await _until(partial(_reached, sent, len(sent) + 60))
                done = True
            for session in sessions:
                async with session.listen(2) as stream:
                    upstream.change("after")
                    assert set(await updates(stream, 1)) == {"up+shared:memo"}
    assert set(upstream.executed.values()) == {1}


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 what changes it has no event
        await anyio.sleep(0.001)


def _reached(sent: Sequence[str], goal: int) -> bool:
    return len(sent) >= goal


async def test_a_session_of_2024_11_05_is_posted_to_through_another_replica(three: Cluster) -> None:
    async with aiohttp.ClientSession() as http:
        base = [one.url for one in three.replicas]
        async with http.get(f"{base[0]}/sse", headers={"Accept": "text/event-stream"}) as stream:
            with anyio.fail_after(GUARD):
                while not (line := await stream.content.readline()).startswith(b"data: "):
                    assert line
            path = line.removeprefix(b"data: ").strip().decode()
            params = {
                "protocolVersion": "2024-11-05",
                "capabilities": {},
                "clientInfo": {"name": "raw", "version": "1"},
            }
            requests: list[Json] = [
                {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params},
                {"jsonrpc": "2.0", "method": "notifications/initialized"},
                {"jsonrpc": "2.0", "id": 1, "method": "ping"},
            ]
            for at, message in enumerate(requests):
                async with http.post(base[at] + path, json=message) as response:
                    assert response.status == 202
            assert [message["id"] for message in await messages(stream, 2)] == [0, 1]


async def test_each_replica_tells_its_own_stateless_streams_of_a_change_once(
    three: Cluster, upstream: SharedUpstream
) -> None:
    async with aiohttp.ClientSession() as http, AsyncExitStack() as stack:
        streams = []
        for at in range(3):
            params = {"_meta": META, "notifications": {"resourceSubscriptions": ["up+shared:memo"]}}
            message = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
            headers = {
                "Accept": "application/json, text/event-stream",
                "MCP-Protocol-Version": LATEST,
                "Mcp-Method": "subscriptions/listen",
            }
            listening = http.post(f"{three.replicas[at].url}/mcp", json=message, headers=headers)
            streams.append(await stack.enter_async_context(listening))
            assert "acknowledged" in (await messages(streams[-1], 1))[0]["method"]
        with anyio.fail_after(GUARD):
            await upstream.wait_subscribed(3)
        for number in range(2):
            upstream.change(f"{number}")
            for stream in streams:
                assert await updates(stream, 1) == ["up+shared:memo"]


async def test_each_replica_shows_its_hops_and_the_members(three: Cluster) -> None:
    async with aiohttp.ClientSession() as http:
        client = Sessions(http, three)
        await client.open(0)
        assert "result" in await client.ask(1, "ping")
        async with http.get(f"{three.replicas[1].url}/metrics") as response:
            shown = await response.text()
    assert 'mcproxy_cluster_hops_total{outcome="answered"} 1.0' in shown
    assert 'mcproxy_cluster_members{state="live"} 3.0' in shown
    assert "mcproxy_cluster_hop_seconds_count 1.0" in shown


async def test_replicas_speak_mutual_tls_where_they_have_certificates(
    redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path
) -> None:
    await redis_server.start()
    authority = Authority(tmp_path)
    files = authority.issue("replica", "replica")
    tls = {"certificate": files.certificate, "key": files.key, "ca": authority.file}
    settings = {"up": {"url": upstream.url}}
    async with (
        cluster(tmp_path, settings, redis_server.url, size=2, more={"tls": tls}) as two,
        aiohttp.ClientSession() as http,
    ):
        client = Sessions(http, two)
        await client.open(0)
        assert "result" in await client.ask(1, "ping")
        came = await two.replicas[1].log.says(lambda entry: entry.get("event") == "a replica came")
        assert came["address"].startswith("https://")
        with pytest.raises(aiohttp.ClientError):
            # TLS 1.3 refuses a client without a certificate after its handshake, with the first byte read.
            async with http.post(came["address"], data=b"x", ssl=authority.client()) as response:
                await response.read()


async def test_a_replica_that_starts_while_redis_is_away_is_not_ready_and_takes_no_session_for_dead(
    redis_server: RedisServer, upstream: SharedUpstream, tmp_path: Path
) -> None:
    await redis_server.start()
    upstreams = {"up": {"url": upstream.url}}
    async with AsyncExitStack() as stack:
        home = await stack.enter_async_context(cluster(tmp_path, upstreams, redis_server.url, size=1))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        client = Sessions(http, home)
        await client.open(0)
        redis_server.stop()
        settings = replica_settings(upstreams, redis_server.url)
        late = await stack.enter_async_context(replica(tmp_path / "late", settings))
        client.urls.append(f"{late.url}/mcp")
        async with http.get(f"{late.url}/readyz") as response:
            assert (response.status, await response.text()) == (503, "waiting for the store that the replicas share\n")
        async with client.post(1, {"id": 1, "method": "ping"}) as response:
            assert response.status == 503
            assert "nothing was executed" in (await response.json())["error"]["message"]
        await redis_server.start()
        await knows(late, 1)
        assert "result" in await client.ask(1, "ping")
        async with http.get(f"{late.url}/readyz") as response:
            assert response.status == 200
