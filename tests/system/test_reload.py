"""A gateway that goes by another configuration while its clients stay (requirement R49)."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import ClientSession

from benchmarks.reloads import storm
from tests.fakes.clients.raw import RawClient, over_http
from tests.processes import descendants, survivors
from tests.system.running import PYTHON, ROOT, Gateway, Json, configuration, gateway
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

PID = str(ROOT / "tests" / "fakes" / "servers" / "pid.py")


def server(**more: object) -> Json:
    return {"command": PYTHON, "args": ["-I", "-S", PID], "era": "legacy", **more}


async def pid_of(client: RawClient, tool: str) -> int:
    answer = await client.call(tool)
    return int(answer["result"]["structuredContent"]["pid"])


def put(folder: Path, settings: Json) -> None:
    """As editors do: whole, under another name, and then in its place."""
    fresh = folder / "mcproxy.new"
    fresh.write_text(json.dumps(settings))
    fresh.rename(folder / "mcproxy.json")


async def says(running: Gateway, event: str, count: int = 1) -> None:
    seen: list[Any] = []

    def is_wanted(entry: Json) -> bool:
        if event in entry.get("event", ""):
            seen.append(entry)
        return len(seen) == count

    with anyio.fail_after(GUARD):
        await running.log.says(is_wanted)


async def test_r49_a_changed_file_changes_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    before = configuration({"a": server(), "b": server()})
    after = configuration({"a": server(), "c": server()}, keep_alive=7)
    async with gateway(tmp_path, before) as running, over_http(running.url + "/mcp") as client:
        await client.initialize()
        await client.request("tools/list")
        kept, gone = await pid_of(client, "a__who"), await pid_of(client, "b__who")
        put(tmp_path, after)
        await client.hears("notifications/tools/list_changed")
        await says(running, "configuration reloaded")
        await pid_of(client, "c__who")
        assert await pid_of(client, "a__who") == kept
        assert "b__who" in (await client.call("b__who"))["error"]["message"]
        assert survivors([gone], within=GUARD) == []
        assert len(descendants(running.process.pid)) == 4


async def test_r49_an_invalid_file_changes_nothing_and_is_told_of(tmp_path: Path) -> None:
    settings = configuration({"a": server()})
    async with gateway(tmp_path, settings) as running, over_http(running.url + "/mcp") as client:
        await client.initialize()
        kept = await pid_of(client, "a__who")
        put(tmp_path, {**settings, "mcpServers": {"a": {"comand": "x"}}})
        await says(running, "invalid")
        assert await pid_of(client, "a__who") == kept
        assert "mcproxy_config_last_reload_successful 0.0" in await metrics(running)
        put(tmp_path, settings)
        await says(running, "nothing changed")
        text = await metrics(running)
        assert "mcproxy_config_last_reload_successful 1.0" in text
        assert "mcproxy_config_generation 1.0" in text
        assert await pid_of(client, "a__who") == kept


async def test_r49_a_signal_reloads_at_once_and_what_needs_a_restart_is_said(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, configuration({"a": server()}, watch=False)) as running,
        over_http(running.url + "/mcp") as client,
    ):
        await client.initialize()
        kept = await pid_of(client, "a__who")
        put(tmp_path, configuration({"a": server(prefix="new")}, watch=False, paths={"mcp": "/elsewhere"}))
        running.process.send_signal(signal.SIGHUP)
        await says(running, "configuration reloaded")
        await says(running, "needs a restart")
        assert await pid_of(client, "new__who") == kept


async def test_r9_readiness_ends_before_admission_does(tmp_path: Path) -> None:
    settings = configuration({"a": server()}, shutdown_delay=2 * GUARD)
    async with (
        gateway(tmp_path, settings, ends_well=False) as running,
        over_http(running.url + "/mcp") as client,
        ClientSession() as http,
    ):
        await client.initialize()
        running.process.terminate()
        await says(running, "stopping")
        async with http.get(f"{running.url}/readyz") as response:
            assert (response.status, await response.text()) == (503, "stopping\n")
        assert await pid_of(client, "a__who")
        async with http.get(f"{running.url}/healthz") as response:
            assert response.status == 200
        running.process.kill()


async def test_r9_a_gateway_that_waits_before_it_stops_ends_well(tmp_path: Path) -> None:
    async with gateway(tmp_path, configuration({"a": server()}, shutdown_delay=0.2)) as running:
        running.process.terminate()
        with anyio.fail_after(GUARD):
            assert await running.process.wait() == 0


async def test_r49_reloads_under_load_touch_no_call_that_they_do_not_concern() -> None:
    with anyio.fail_after(4 * GUARD):
        figures = await storm(60, seed=49)
    assert figures.reloads > 60


async def metrics(running: Gateway) -> str:
    async with ClientSession() as http, http.get(f"{running.url}/metrics") as response:
        return await response.text()
