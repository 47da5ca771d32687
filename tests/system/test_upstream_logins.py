"""Logins at upstreams, through gateways as they are run: where tokens appear, and what outlives a killed gateway.

Each token here is a canary: text that would be found wherever it appeared.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web

from mcproxy.sealing import Sealer
from mcproxy.settings.upstreams.oauth import OAuthSettings
from mcproxy.upstream.oauth.flow import OAuthFlow
from mcproxy.upstream.oauth.storage.store import FileStore
from tests.downstream.modern import headers_of, request
from tests.fakes.authorization import Authorization, authorization, follow
from tests.fakes.issuer import issuing
from tests.processes import descendants
from tests.system.running import Gateway, Json, configuration, serving, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

SECRET = hashlib.sha256(b"logins").hexdigest()
CLIENT_SECRET = "canary-client-secret"
ACCEPT = {"Accept": "application/json, text/event-stream"}


def store(folder: Path) -> FileStore:
    return FileStore(folder / "state" / "mcproxy" / "grants", Sealer(SECRET.encode()))


async def log_in(folder: Path, server: Authorization, name: str = "web") -> None:
    """As `mcproxy login` does."""
    flow = OAuthFlow(name, server.url, OAuthSettings(), store(folder))
    found = await flow.discover(await flow.challenge())
    begun, url = await flow.begin_login(found, "http://127.0.0.1:1/callback")
    await flow.finish_login(begun, found.server, await follow(url))


def settings(servers: Json, **more: Any) -> Json:
    return {**configuration(servers, secret=SECRET, log_level="debug"), **more}


async def called(running: Gateway, tool: str, token: str | None = None) -> Json:
    """The answer to a call of a stateless client."""
    return await answered(running, request(1, "tools/call", {"name": tool, "arguments": {}}), token)


async def listed(running: Gateway, token: str) -> Json:
    return await answered(running, request(1, "tools/list"), token)


async def answered(running: Gateway, message: Json, token: str | None) -> Json:
    headers = {**ACCEPT, **headers_of(message), **({} if token is None else {"Authorization": f"Bearer {token}"})}
    async with aiohttp.ClientSession() as http, http.post(f"{running.url}/mcp", json=message, headers=headers) as got:
        text = await got.text()
    answer: Json = json.loads(text.partition("data: ")[2] or text)
    return answer


INITIALIZE: Json = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
}


async def posted(
    running: Gateway, message: Json, token: str, more: Mapping[str, str] | None = None
) -> tuple[Mapping[str, str], str]:
    """The head and body of the answer to a client of the handshake era."""
    headers = {**ACCEPT, "Authorization": f"Bearer {token}", **(more or {})}
    async with aiohttp.ClientSession() as http, http.post(f"{running.url}/mcp", json=message, headers=headers) as got:
        return got.headers, await got.text()


@dataclass
class Elsewhere:
    """An HTTP server that keeps all that it is sent: another upstream, or a collector of traces."""

    url: str = ""
    heard: list[bytes] = field(default_factory=list)

    async def hear(self, asked: web.Request) -> web.Response:
        self.heard.append(repr(dict(asked.headers)).encode() + asked.raw_path.encode() + await asked.read())
        return web.Response(status=404)


@asynccontextmanager
async def elsewhere() -> AsyncIterator[Elsewhere]:
    it = Elsewhere()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", it.hear)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        it.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield it
    finally:
        await runner.cleanup()


async def scraped(url: str) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as response:
        return await response.text()


def arguments(running: Gateway) -> str:
    """The command lines and environments of the gateway and all that it started."""
    found = ""
    for pid in [running.process.pid, *descendants(running.process.pid)]:
        for name in ("cmdline", "environ"):
            found += Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    return found


async def test_r44_tokens_appear_at_their_own_origin_and_nowhere_else(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    with anyio.fail_after(GUARD):
        async with (
            authorization(prefix="canary-", quotes_token=True, quotes_form=True) as own,
            authorization(prefix="canary-other-") as asked,
            issuing() as issuer,
            elsewhere() as other,
        ):
            await log_in(tmp_path, own)
            exchange = {
                "grant": "token_exchange",
                "issuer": asked.origin,
                "client": {"id": "me", "secret": CLIENT_SECRET},
            }
            servers = {
                "web": {"url": own.url, "type": "http", "era": "modern", "oauth": {"per": "gateway"}},
                "asked": {"url": asked.url, "type": "http", "era": "modern", "oauth": exchange},
                "other": {"url": f"{other.url}/mcp", "type": "http", "era": "modern"},
            }
            access = {"authentication": {"oauth": {"issuers": [{"issuer": issuer.url}]}}, "audit": {"file": str(audit)}}
            configured = settings(servers, access=access)
            configured["proxy"]["tracing"] = {"enabled": True, "endpoint": f"{other.url}/v1/traces", "sample": 1}
            configured["admin"] = {"port": 0, "role": "any"}
            async with serving(tmp_path, write(tmp_path, configured)) as running:
                await running.log.says(lambda entry: entry.get("event") == "upstream connected")
                inbound = issuer.token(f"{running.url}/mcp", scope="canary")
                tools = json.dumps(await listed(running, inbound))
                assert "web__work" in tools
                assert "asked__work" in tools
                assert "[redacted]" in json.dumps(await called(running, "web__work", inbound)), "it quotes its token"
                assert "done" in json.dumps(await called(running, "asked__work", inbound))
                own.valid.clear()
                own.forget_refresh_tokens()
                refused = json.dumps(await called(running, "web__work", inbound))
                processes = arguments(running)
                log = running.log
            exchanged = [form for form in asked.token_requests if "subject_token" in form]
            assert [form["subject_token"] for form in exchanged] == [inbound]
            seen = {
                "log": str(log),
                "audit": audit.read_text(),
                "answers": refused,
                "arguments": processes,
                "traces, and another server": repr(other.heard),
                "state": (tmp_path / "state" / "mcproxy" / "grants").read_text(),
            }
            upstreams = repr(asked.resource_requests) + repr(own.resource_requests)
    assert "oauth refresh" in seen["audit"]
    assert any(b"/v1/traces" in heard for heard in other.heard), "spans were sent"
    assert "canary-access" in repr(own.resource_requests)
    for place, text in seen.items():
        for canary in ("canary-access", "canary-refresh", "canary-other-", CLIENT_SECRET, inbound, inbound[-20:]):
            assert canary not in text, place
    assert inbound not in upstreams
    assert "canary-other-" not in repr(own.resource_requests)
    assert "canary-access" not in repr(asked.resource_requests)


async def test_r39_a_lesser_token_of_a_person_gains_nothing_by_the_better_one_in_either_era(tmp_path: Path) -> None:
    with anyio.fail_after(GUARD):
        async with authorization() as server, issuing() as issuer:
            client = {"id": "me", "secret": CLIENT_SECRET}
            exchange = {"grant": "token_exchange", "issuer": server.origin, "client": client}
            servers = {"web": {"url": server.url, "type": "http", "era": "modern", "oauth": exchange}}
            access = {"authentication": {"oauth": {"issuers": [{"issuer": issuer.url}]}}}
            async with serving(tmp_path, write(tmp_path, settings(servers, access=access))) as running:
                better, lesser = (issuer.token(f"{running.url}/mcp", scope=scope) for scope in ("all", "less"))
                server.refused_subjects.add(lesser)
                session = (await posted(running, INITIALIZE, better))[0]["Mcp-Session-Id"]
                call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "web__work"}}
                for _ in range(2):
                    for shown in (better, lesser):
                        answers = [json.dumps(await called(running, "web__work", shown))]
                        answers.append((await posted(running, call, shown, {"Mcp-Session-Id": session}))[1])
                        assert ["done" in answer for answer in answers] == [shown == better] * 2, answers
        assert server.served.count("tools/call") == 4
        assert len({header for header in server.resource_requests if header}) == 1


async def test_r44_no_metric_holds_a_byte_of_a_token(tmp_path: Path) -> None:
    with anyio.fail_after(GUARD):
        async with authorization(prefix="canary-") as own:
            await log_in(tmp_path, own)
            servers = {"web": {"url": own.url, "type": "http", "era": "modern", "oauth": {}}}
            async with serving(tmp_path, write(tmp_path, settings(servers)), "web") as running:
                assert "done" in json.dumps(await called(running, "web__work"))
                metrics = await scraped(running.url)
    assert "mcproxy_oauth" in metrics
    assert "canary-" not in metrics


@pytest.mark.parametrize("redeemed", [False, True])
async def test_r65_a_gateway_that_is_killed_while_it_refreshes_refreshes_again_or_asks_once(
    tmp_path: Path, redeemed: bool
) -> None:
    servers = {}
    with anyio.fail_after(GUARD):
        async with authorization(life=3600) as server:
            await log_in(tmp_path, server)
            servers = {"web": {"url": server.url, "type": "http", "era": "modern", "oauth": {}}}
            file = write(tmp_path, settings(servers))
            async with serving(tmp_path, file, "web", ends_well=False) as running:
                assert "done" in json.dumps(await called(running, "web__work"))
                server.valid.clear()
                server.hold, server.redeems_first = anyio.Event(), redeemed
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_ignoring, called, running, "web__work")
                    await server.asked(2)
                    os.kill(running.process.pid, signal.SIGKILL)
                    await running.process.wait()
                server.hold.set()
            server.hold = None
            async with serving(tmp_path, file) as running:
                first = json.dumps(await called(running, "web__work"))
                asked = len(server.token_requests)
                for _ in range(3):
                    again = json.dumps(await called(running, "web__work"))
                assert len(server.token_requests) == asked, "nothing asks in a loop"
    if redeemed:
        assert "/oauth/connect/" in first, "a person is asked, by a link"
        assert "/oauth/connect/" in again
    else:
        assert "done" in first
        assert "done" in again
    assert asked == 3


async def _ignoring(call: Any, *arguments: Any) -> None:
    """A call whose gateway dies under it."""
    try:
        await call(*arguments)
    except aiohttp.ClientError:
        return
