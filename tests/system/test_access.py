"""Two callers with keys of their own at one running gateway: each meets what its role allows, and nothing else."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import anyio
import pytest

from mcproxy.access.keys import key_digest, make
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.headers import VERSION
from tests.system.running import ODD_SERVER, Json, configuration, serving, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

COMMAND, *ARGUMENTS = ODD_SERVER
ODD: Json = {"command": COMMAND, "args": ARGUMENTS}
KEYS = {"ann": make(), "bob": make()}
ACCESS: Json = {
    "authentication": {"keys": {name: [{"sha256": key_digest(key).hex()}] for name, key in KEYS.items()}},
    "policy": {
        "roles": {"admin": {"allow": [{}]}, "echoer": {"allow": [{"upstreams": ["odd"], "tools": ["echo"]}]}},
        "principals": {"ann": ["admin"], "bob": ["echoer"]},
    },
}
META = {
    "io.modelcontextprotocol/protocolVersion": LATEST,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


async def ask(url: str, who: str, method: str, subject: str | None = None, **params: object) -> tuple[int, Json]:
    headers = {"Authorization": f"Bearer {KEYS[who]}", VERSION: LATEST, "Mcp-Method": method}
    headers |= {"Accept": "application/json, text/event-stream"} | ({"Mcp-Name": subject} if subject else {})
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    async with aiohttp.ClientSession() as http, http.post(url, json=message, headers=headers) as response:
        return response.status, await response.json()


async def test_r38_each_caller_meets_what_its_role_allows_and_nothing_else(tmp_path: Path) -> None:
    settings = {
        **configuration({"odd": ODD, "other": ODD}),
        "access": ACCESS,
        "endpoints": {"admins": {"upstreams": ["odd"], "roles": ["admin"]}},
    }
    async with serving(tmp_path, write(tmp_path, settings)) as running:
        with anyio.fail_after(GUARD):
            mcp = f"{running.url}/mcp"
            _, listed = await ask(mcp, "bob", "tools/list")
            assert [tool["name"] for tool in listed["result"]["tools"]] == ["odd__echo"]
            assert listed["result"]["cacheScope"] == "private"
            _, whole = await ask(mcp, "ann", "tools/list")
            assert len(whole["result"]["tools"]) > 10
            _, denied = await ask(mcp, "bob", "tools/call", "odd__links", name="odd__links", arguments={})
            _, missing = await ask(mcp, "bob", "tools/call", "odd__nil", name="odd__nil", arguments={})
            assert str(denied).replace("links", "nil") == str(missing)
            status, allowed = await ask(
                mcp, "bob", "tools/call", "odd__echo", name="odd__echo", arguments={"text": "a"}
            )
            assert (status, "result" in allowed) == (200, True)
            for path in ("/servers/other/mcp", "/mcp/admins"):
                refused = await ask(running.url + path, "bob", "tools/list")
                assert refused == await ask(
                    running.url + path.replace("other", "nil").replace("admins", "nil"), "bob", "tools/list"
                )
                assert refused[0] == 404
                assert (await ask(running.url + path, "ann", "tools/list"))[0] == 200
