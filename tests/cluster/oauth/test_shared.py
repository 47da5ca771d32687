"""The twin of `mcproxy.cluster.oauth.shared`: three gateways, a real Redis, and a server that wants OAuth.

Its refresh tokens are good once: one that two replicas redeem would be a refused refresh, and a lost login.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import mcp_types as types
import pytest
from mcp import Client
from redis.asyncio import Redis

from mcproxy.access.keys import key_digest as key_digest
from mcproxy.cluster.members import chosen
from mcproxy.cluster.oauth.grants import SharedGrants, opaque_name
from mcproxy.cluster.store.redis_store import opened_store
from mcproxy.login.links import ConnectLinks
from mcproxy.sealing import Sealer
from mcproxy.settings.upstreams.oauth import OAuthSettings
from mcproxy.upstream.oauth.flow import OAuthFlow
from mcproxy.upstream.oauth.grants import Grant, GrantKey
from tests.cluster.conftest import RedisProxy, RedisServer
from tests.cluster.replicas import SECRET, knows, replica_settings
from tests.downstream.modern import headers_of, request
from tests.fakes.authorization import Authorization, authorization, follow
from tests.fakes.browser import Browser, Page, browser
from tests.system.running import PYTHON, Gateway, Json, serving, write
from tests.timeouts import GUARD
from tests.upstream.oauth.provider import Provider, need_provider, provider
from tests.upstream.oauth.provider import log_in as log_in_there

pytestmark = pytest.mark.anyio

KEY = GrantKey("web")
CALLS = 60


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[RedisProxy]:
    await redis_server.start()
    proxy = RedisProxy(redis_server.port)
    async with proxy.serving():
        yield proxy


@asynccontextmanager
async def three(
    folder: Path,
    redis: RedisProxy,
    server: Authorization | Provider,
    *,
    ends_well: bool = True,
    access: Json | None = None,
    **oauth: Any,
) -> AsyncIterator[list[Gateway]]:
    """Replicas that know each other, before a server that wants OAuth."""
    upstreams: Json = {"web": {"url": server.url, "type": "http", "era": "modern", "oauth": oauth}}
    settings = replica_settings(upstreams, f"redis://127.0.0.1:{redis.port}/0") | {"access": access or {}}
    async with AsyncExitStack() as stack:
        replicas = []
        for number in range(3):
            home = folder / f"replica{number}"
            home.mkdir()
            replicas.append(await stack.enter_async_context(serving(home, write(home, settings), ends_well=ends_well)))
        for one in replicas:
            await knows(one, 2)
        for one in replicas:
            stack.callback(one.stop)
        yield replicas


@asynccontextmanager
async def shared(redis: RedisServer) -> AsyncIterator[SharedGrants]:
    async with opened_store(redis.url, GUARD) as store:
        yield SharedGrants(store, Sealer(SECRET.encode()))


async def log_in(server: Authorization, redis: RedisServer) -> Grant:
    """The gateway's own login, as `mcproxy login` makes it."""
    async with shared(redis) as grants:
        flow = OAuthFlow("web", server.url, OAuthSettings(), grants)
        found = await flow.discover(await flow.challenge())
        begun, url = await flow.begin_login(found, "http://127.0.0.1:1/callback")
        return await flow.finish_login(begun, found.server, await follow(url))


async def stored(redis: RedisServer, generation: int) -> Grant:
    """The grant in Redis, once it is of that generation."""
    async with shared(redis) as grants:
        while True:
            found = await grants.load(KEY)
            if found is not None and found.generation == generation:
                return found
            await anyio.sleep(0.02)


async def called(replica: Gateway, tool: str = "web__work", key: str | None = None) -> str:
    """The answer to a call of a stateless client that opens no links."""
    message = request(1, "tools/call", {"name": tool, "arguments": {}})
    headers = {"Accept": "application/json, text/event-stream", **headers_of(message)}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    async with aiohttp.ClientSession() as http, http.post(f"{replica.url}/mcp", json=message, headers=headers) as got:
        return await got.text()


async def storm(replicas: Sequence[Gateway]) -> list[str]:
    """The answers to `CALLS` calls at once, dealt out among replicas."""
    return await asyncio.gather(*(called(replicas[number % len(replicas)]) for number in range(CALLS)))


async def until_called(replica: Gateway, *, succeeds: bool) -> None:
    """Returns once a call has that end."""
    while True:
        if is_done(await called(replica)) is succeeds:
            return
        await anyio.sleep(0.02)


def is_done(answer: str) -> bool:
    return '"value":"done"' in answer.replace(" ", "")


def refreshes(server: Authorization) -> int:
    return sum(form["grant_type"] == "refresh_token" for form in server.token_requests)


def home_of(replicas: Sequence[Gateway], key: GrantKey) -> Gateway:
    """The replica that renews a grant; each replica's log names the others alone."""
    heard = [set(re.findall(r'"replica": ?"(\w+)"', str(one.log))) for one in replicas]
    labels = set.union(*heard)
    home = chosen(f"grant {opaque_name(*key)}", labels)
    return next(one for one, others in zip(replicas, heard, strict=True) if home not in others)


async def test_a_storm_of_calls_at_three_replicas_is_one_refresh_for_each_expiry(
    tmp_path: Path, redis: RedisProxy, redis_server: RedisServer
) -> None:
    with anyio.fail_after(3 * GUARD):
        async with authorization() as server:
            await log_in(server, redis_server)
            async with three(tmp_path, redis, server, per="gateway") as replicas:
                assert all(map(is_done, await storm(replicas)))
                for expiry in range(1, 6):
                    server.valid.clear()
                    assert all(map(is_done, await storm(replicas)))
                    assert refreshes(server) == expiry
                figures = [await scraped(one) for one in replicas]
        redeemed = [form["refresh_token"] for form in server.token_requests if "refresh_token" in form]
        assert len(redeemed) == len(set(redeemed)) == 5
        assert sum(figures) == 5, "each token request is counted once"
        assert (await stored(redis_server, 6)).token.refresh == "refresh-token-6"
        client = Redis.from_url(redis_server.url)
        held = [str(await client.get(key)).encode() async for key in client.scan_iter("mcproxy:grant:*")]
        await client.aclose()
    assert len(held) == 1
    for secret in (b"refresh-token", b"access-token", b"client-1"):
        assert all(secret not in each for each in held), "no token is in Redis in clear"
    for home in ("replica0", "replica1", "replica2"):
        assert not (tmp_path / home / "state" / "mcproxy" / "grants").exists(), "nor in a file"


async def scraped(replica: Gateway) -> float:
    """The token requests that a replica counts."""
    async with aiohttp.ClientSession() as http, http.get(f"{replica.url}/metrics") as response:
        text = await response.text()
    return sum(map(float, re.findall(r'^mcproxy_oauth_token_requests_total\{outcome="granted".*\} (\S+)', text, re.M)))


async def test_a_home_that_is_killed_while_it_refreshes_is_replaced_and_every_other_call_is_answered(
    tmp_path: Path, redis: RedisProxy, redis_server: RedisServer
) -> None:
    with anyio.fail_after(3 * GUARD):
        async with authorization() as server:
            await log_in(server, redis_server)
            async with three(tmp_path, redis, server, ends_well=False, per="gateway") as replicas:
                assert all([is_done(await called(one)) for one in replicas])
                home = home_of(replicas, KEY)
                others = [one for one in replicas if one is not home]
                server.valid.clear()
                server.hold = anyio.Event()
                async with anyio.create_task_group() as tasks:
                    answers: list[str] = []

                    async def calls() -> None:
                        answers.extend(await storm(others))

                    tasks.start_soon(calls)
                    await server.asked(2)
                    home.process.kill()
                    await home.process.wait()
                    server.hold.set()
                assert all(map(is_done, answers))
                assert refreshes(server) == 2, "that of the dead, which redeemed nothing, and its successor's"
                assert (await stored(redis_server, 2)).token.refresh == "refresh-token-2"


async def test_r72_redis_that_goes_away_while_a_token_is_refreshed_loses_no_login(
    tmp_path: Path, redis: RedisProxy, redis_server: RedisServer
) -> None:
    with anyio.fail_after(3 * GUARD):
        async with authorization() as server, browser() as person:
            await log_in(server, redis_server)
            async with three(tmp_path, redis, server, per="gateway") as replicas:
                assert all([is_done(await called(one)) for one in replicas])
                server.valid.clear()
                server.hold = anyio.Event()
                async with anyio.create_task_group() as tasks:
                    answers: list[str] = []

                    async def calls() -> None:
                        answers.extend(await storm(replicas))

                    tasks.start_soon(calls)
                    await server.asked(2)
                    redis_server.stop()
                    redis.refuse()
                    server.hold.set()
                assert all(map(is_done, answers)), "the pair that came is used before it can be stored"
                assert all(map(is_done, await storm(replicas))), "unexpired tokens serve"
                server.valid.clear()
                assert all(map(is_done, await storm(replicas))), "and are refreshed without Redis too"
                assert refreshes(server) == 2
                refused = await begun(person, login_link(replicas[0]))
                assert refused.status == 502
                assert "no login can be made until it does" in refused.text
                await redis_server.start()
                redis.admit()
                # What it held is lost, as its server has no file: the replicas store the grant again.
                assert (await stored(redis_server, 3)).token.refresh == "refresh-token-3"
                server.valid.clear()
                assert all(map(is_done, await storm(replicas)))
                assert refreshes(server) == 3
    assert len(server.token_requests) == 4


async def test_users_who_go_from_replica_to_replica_are_logged_in_for_good_at_a_real_provider(
    tmp_path: Path, redis: RedisProxy, redis_server: RedisServer
) -> None:
    need_provider()
    keys = {name: f"key-of-{name}-0123456789" for name in ("ann", "bob", "eve")}
    access = {"authentication": {"keys": {name: [{"sha256": key_digest(key).hex()}] for name, key in keys.items()}}}
    with anyio.fail_after(3 * GUARD):
        async with provider(seconds=6) as at:
            async with shared(redis_server) as grants:
                flow = OAuthFlow("web", at.url, OAuthSettings(), grants)
                for name in keys:
                    found = await flow.discover(await flow.challenge())
                    begun, url = await flow.begin_login(found, "http://127.0.0.1:1/callback")
                    await flow.finish_login(begun, found.server, await log_in_there(url, name), name)
            async with three(tmp_path, redis, at, access=access) as replicas:
                figures = await at.figures()
                while figures["grants"].get("refresh_token", 0) < 2 * len(keys):
                    for one in replicas:
                        answers = await asyncio.gather(*(called(one, "web__whoami", key) for key in keys.values()))
                        assert [name in answer for name, answer in zip(keys, answers, strict=True)] == [True] * 3
                    figures = await at.figures()
    assert figures["errors"] == {}
    assert (figures["replayed"], figures["revoked"]) == (0, 0), "each refresh token was redeemed once"
    assert figures["grants"]["authorization_code"] == len(keys), "no user had to log in again"


def login_link(replica: Gateway) -> str:
    """The link by which an operator logs in for all callers, as the status page has it; here, everyone is one."""
    return replica.url + ConnectLinks(Sealer(SECRET.encode())).path("web", "")


async def begun(person: Browser, link: str) -> Page:
    """The page after consent."""
    return await person.submit(await person.open(link), "consent")


def at(replica: Gateway, url: str) -> str:
    """The same page at another replica, as a load balancer deals requests out."""
    return re.sub(r"^http://[^/]+", replica.url, url)


async def test_a_login_begun_at_one_replica_ends_at_another_and_serves_calls_at_all_until_it_is_taken_back(
    tmp_path: Path, redis: RedisProxy, redis_server: RedisServer
) -> None:
    with anyio.fail_after(3 * GUARD):
        async with (
            authorization() as server,
            browser() as person,
            three(tmp_path, redis, server, per="gateway") as (a, b, c),
        ):

            async def opened(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
                # The consent page at A, its form at B, the redirect at C, and once more at A.
                assert isinstance(params, types.ElicitRequestURLParams)
                consent = await person.open(at(a, params.url))
                leaving = await person.post(at(b, consent.url), consent.form("consent"))
                redirect = (await person.open(leaving.onward, follow=False)).headers["Location"]
                assert (await person.open(at(c, redirect))).status == 200
                assert (await person.open(at(a, redirect))).status == 403, "each state is good once, everywhere"
                return types.ElicitResult(action="accept")

            async with Client(f"{a.url}/mcp", elicitation_callback=opened) as client:
                result = await client.call_tool("web__work", {})
            assert result.structured_content == {"value": "done"}, "the call that waited at A went on"
            assert server.served.count("tools/call") == 1
            for one in (b, c):
                await until_called(one, succeeds=True)
            assert len(server.token_requests) == 1
            assert await command(a, "grants") == 0
            assert await command(b, "logout", "web") == 0
            assert len(server.revoked) == 1
            for one in (a, b, c):
                await until_called(one, succeeds=False)
            asked = len(server.resource_requests)
            answers = [await called(one) for one in (a, b, c)]
    assert len(server.resource_requests) == asked, "nothing is sent with a token that was taken back"
    assert not any(map(is_done, answers))


async def command(replica: Gateway, *words: str) -> int:
    """The exit status of a command with the replica's configuration."""
    file = replica.folder / "mcproxy.json"
    process = await anyio.open_process(
        [PYTHON, "-m", "mcproxy", *words, "--config", str(file)],
        stdout=None,
        stderr=None,
        env={**os.environ, "XDG_STATE_HOME": str(replica.folder / "state")},
    )
    return await process.wait()
