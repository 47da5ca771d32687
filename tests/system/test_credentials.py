"""Callers with credentials of their own for a server that answers nobody without: no two of them share a connection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from mcproxy.access.keys import key_digest, make
from mcproxy.protocol.eras import LATEST
from tests.downstream.modern import headers_of, request
from tests.system.running import Json, Log, configuration, serving, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

HEADER = "X-Upstream-Token"
ALICE, BOB = "sentinel-of-alice-4711", "sentinel-of-bob-0815"


@dataclass
class Echo:
    """Answers a call with the Authorization that came with it, and lists a tool of that name. Of the handshake era."""

    sessions: dict[str, set[str]] = field(default_factory=dict)
    """What Authorization each session was used with."""
    headers: list[dict[str, str]] = field(default_factory=list)

    async def post(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        token = request.headers.get("Authorization")
        if token is None:
            return web.Response(status=401)
        message = await request.json()
        if message.get("method") == "initialize":
            id = f"session-{len(self.sessions)}"
            self.sessions[id] = {token}
            info = {"name": "echo", "version": "1"}
            result: Json = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            return web.json_response(
                {"jsonrpc": "2.0", "id": message["id"], "result": result}, headers={"Mcp-Session-Id": id}
            )
        if "Mcp-Session-Id" not in request.headers:
            return web.Response(status=400)
        self.sessions[request.headers["Mcp-Session-Id"]].add(token)
        if "id" not in message:
            return web.Response(status=202)
        own = {"name": f"of_{token.split('-')[-2]}", "inputSchema": {"type": "object"}}
        who = {"name": "whoami", "inputSchema": {"type": "object"}}
        result = (
            {"tools": [who, own]}
            if message["method"] == "tools/list"
            else {"content": [{"type": "text", "text": token}]}
        )
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})


@dataclass
class Caller:
    """`token` is what it brings for the server, if anything."""

    http: aiohttp.ClientSession
    url: str
    key: str
    token: str | None
    session: str | None = None

    async def ask(self, message: Json) -> Json:
        headers = {"Authorization": f"Bearer {self.key}", "Accept": "application/json, text/event-stream"}
        headers |= {HEADER: self.token} if self.token else {}
        headers |= {"Mcp-Session-Id": self.session} if self.session else {}
        headers |= headers_of(message) if "_meta" in message.get("params", {}) else {}
        async with self.http.post(f"{self.url}/mcp", json=message, headers=headers) as response:
            self.session = response.headers.get("Mcp-Session-Id", self.session)
            if response.status == 202:
                return {}
            if response.content_type == "application/json":
                return dict(await response.json())
            data = [line[6:] for line in (await response.text()).splitlines() if line.startswith("data: {")]
            return dict(json.loads(data[-1]))

    async def opened(self) -> Caller:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        await self.ask({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        await self.ask({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def message(self, method: str, **params: Any) -> Json:
        if self.session is None:
            return request(1, method, params)
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

    async def tools(self) -> set[str]:
        answer = await self.ask(self.message("tools/list"))
        return {tool["name"] for tool in answer["result"]["tools"]}

    async def call(self) -> Json:
        return await self.ask(self.message("tools/call", name="echo__whoami", arguments={}))

    async def who(self) -> str:
        answer = await self.call()
        text: str = answer["result"]["content"][0]["text"]
        return text


@dataclass
class Scene:
    http: aiohttp.ClientSession
    url: str
    keys: dict[str, str]
    echo: Echo
    log: Log

    async def caller(self, name: str, token: str | None, era: str) -> Caller:
        caller = Caller(self.http, self.url, self.keys[name], token)
        return caller if era == LATEST else await caller.opened()


@asynccontextmanager
async def scene(folder: Path, **headers: str) -> AsyncIterator[Scene]:
    echo, keys = Echo(), {"alice": make(), "bob": make()}
    app = web.Application()
    app.router.add_post("/mcp", echo.post)
    server = TestServer(app)
    await server.start_server()
    try:
        spec = {
            "url": str(server.make_url("/mcp")),
            "type": "http",
            "era": "legacy",
            "headers": headers,
            "credentials": {"forward": {HEADER: "Authorization: Bearer {}"}},
        }
        authentication = {"keys": {name: [{"sha256": key_digest(key).hex()}] for name, key in keys.items()}}
        file = write(
            folder, {**configuration({"echo": spec}, log_level="debug"), "access": {"authentication": authentication}}
        )
        with anyio.fail_after(GUARD):
            async with serving(folder, file) as gateway, aiohttp.ClientSession() as http:
                yield Scene(http, gateway.url, keys, echo, gateway.log)
    finally:
        await server.close()


ERAS = pytest.mark.parametrize("era", ["2025-11-25", LATEST])


@ERAS
async def test_r39_each_principal_has_its_own_connection_and_list(tmp_path: Path, era: str) -> None:
    async with scene(tmp_path) as s:
        alice, bob = await s.caller("alice", ALICE, era), await s.caller("bob", BOB, era)
        assert await alice.tools() == {"echo__whoami", "echo__of_alice"}
        assert await bob.tools() == {"echo__whoami", "echo__of_bob"}
        assert [await alice.who(), await bob.who(), await alice.who()] == [
            f"Bearer {ALICE}",
            f"Bearer {BOB}",
            f"Bearer {ALICE}",
        ]
        assert sorted(map(sorted, s.echo.sessions.values())) == [[f"Bearer {ALICE}"], [f"Bearer {BOB}"]]


@ERAS
async def test_r39_one_value_in_the_hands_of_two_principals_makes_two_connections(tmp_path: Path, era: str) -> None:
    async with scene(tmp_path) as s:
        for name in ("alice", "bob"):
            assert await (await s.caller(name, ALICE, era)).who() == f"Bearer {ALICE}"
        assert len(s.echo.sessions) == 2


@ERAS
async def test_r40_a_caller_without_credentials_is_told_which_header_and_never_served_as_another(
    tmp_path: Path, era: str
) -> None:
    async with scene(tmp_path, Authorization="Bearer the-operators-own-1234") as s:
        assert await (await s.caller("alice", ALICE, era)).who() == f"Bearer {ALICE}"
        nobody = await s.caller("alice", None, era)
        assert HEADER in (await nobody.call())["error"]["message"]
        assert not any("of_alice" in name for name in await nobody.tools())


@ERAS
async def test_r40_it_is_told_which_header_where_the_server_lists_nothing_without_one(tmp_path: Path, era: str) -> None:
    async with scene(tmp_path) as s:
        nobody = await s.caller("alice", None, era)
        assert f"send the header {HEADER}" in (await nobody.call())["error"]["message"]
        reasons = [entry["reason"] for entry in s.log.entries if entry.get("event") == "upstream unavailable"]
        assert any("which each caller has to bring (`credentials`)" in reason for reason in reasons)


async def test_r39_a_session_that_brings_another_value_goes_on_over_another_connection(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        alice = await s.caller("alice", ALICE, "2025-11-25")
        assert await alice.who() == f"Bearer {ALICE}"
        alice.token = BOB
        assert await alice.who() == f"Bearer {BOB}"
        assert all(len(tokens) == 1 for tokens in s.echo.sessions.values())


@ERAS
async def test_r40_r44_nothing_else_goes_on_and_the_log_holds_no_value(tmp_path: Path, era: str) -> None:
    async with scene(tmp_path) as s:
        alice = await s.caller("alice", ALICE, era)
        await alice.who()
        assert (await s.caller("bob", None, era)).token is None
        seen = json.dumps(s.echo.headers)
        assert s.keys["alice"] not in seen
        assert HEADER.lower() not in seen.lower()
        assert ALICE not in str(s.log)
