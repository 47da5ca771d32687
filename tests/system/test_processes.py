"""Processes come and go as they should: whatever happens to the gateway, its children or its client."""

from __future__ import annotations

import signal
from pathlib import Path

import aiohttp
import anyio
import pytest

from tests.fakes.clients.raw import RawClient, over_http, over_stdio
from tests.processes import command_line, descendants, survivors
from tests.system.running import NODE, ODD_SERVER, Gateway, Json, command, configuration, gateway, need_npm, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

COMMAND, *ARGUMENTS = ODD_SERVER
ODD: Json = {"command": COMMAND, "args": ARGUMENTS}


def below(running: Gateway) -> list[int]:
    found = descendants(running.process.pid)
    assert found
    return found


async def test_r11_killing_the_gateway_leaves_no_child(tmp_path: Path) -> None:
    async with gateway(tmp_path, configuration({"odd": ODD}), ends_well=False) as running:
        children = below(running)
        running.process.kill()
        assert survivors(children, within=GUARD) == []


async def test_r11_killing_the_gateway_leaves_no_grandchild_of_npx(tmp_path: Path) -> None:
    need_npm()
    npx = {"command": "npx", "args": ["--no-install", "mcp-server-everything"], "cwd": str(NODE)}
    async with gateway(tmp_path, configuration({"npx": npx}), ends_well=False) as running:
        children = below(running)
        assert any("server-everything" in command_line(pid) for pid in children)
        running.process.kill()
        assert survivors(children, within=GUARD) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_r9_an_idle_gateway_ends_at_once_with_its_children(tmp_path: Path, number: signal.Signals) -> None:
    async with (
        gateway(tmp_path, configuration({"odd": ODD}, shutdown_grace=3600)) as running,
        over_http(running.server("odd")) as client,
        over_http(running.url + "/mcp") as other,
    ):
        await client.initialize()
        await other.initialize()
        children = below(running)
        with anyio.fail_after(GUARD):
            running.process.send_signal(number)
            assert await running.process.wait() == 0
        assert survivors(children, within=0) == []


async def test_r9_sigterm_ends_the_live_feed_of_the_status_page_at_once(tmp_path: Path) -> None:
    settings = {**configuration({"odd": ODD}, shutdown_grace=3600), "admin": {"port": 0}}
    async with gateway(tmp_path, settings) as running, aiohttp.ClientSession() as http:
        serving = await running.log.says(lambda entry: "status_page" in entry)
        with anyio.fail_after(GUARD):
            async with http.get(f"{serving['status_page']}/live/events") as response:
                assert response.status == 200
                running.process.terminate()
                await response.content.read()
            assert await running.process.wait() == 0


async def test_r9_a_call_in_flight_is_answered_before_the_gateway_ends(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, configuration({"odd": ODD})) as running,
        over_http(running.server("odd")) as client,
        anyio.create_task_group() as tasks,
    ):
        await client.initialize()
        tasks.start_soon(terminate_at_progress, running, client)
        with anyio.fail_after(GUARD):
            answer = await client.call("linger", progressToken="t")
            assert answer["result"]["content"][0]["text"] == "linger: done"
            assert await running.process.wait() == 0


async def test_r9_a_call_that_never_ends_holds_the_gateway_up_no_longer_than_its_grace(tmp_path: Path) -> None:
    settings = configuration({"odd": ODD}, shutdown_grace=0.5)
    async with gateway(tmp_path, settings) as running, over_http(running.server("odd")) as client:
        await client.initialize()
        with anyio.fail_after(GUARD):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(terminate_at_progress, running, client)
                answer = await client.call("wait", progressToken="t")
            assert answer["error"]["message"]
            assert await running.process.wait() == 0


async def terminate_at_progress(running: Gateway, client: RawClient) -> None:
    await client.hears("notifications/progress")
    running.process.terminate()


async def test_r13_a_dying_child_fails_its_call_with_its_stderr_and_is_started_again(tmp_path: Path) -> None:
    async with gateway(tmp_path, configuration({"odd": ODD})) as running, over_http(running.server("odd")) as client:
        await client.initialize()
        with anyio.fail_after(GUARD):
            error = (await client.call("die"))["error"]
            told = error["message"] + str(error.get("data"))
            assert "upstream 'odd'" in told
            assert "status 7" in told
            assert "the last words" in told
            assert (await client.call("fail"))["result"]["isError"] is True


async def test_r12_over_stdio_the_gateway_ends_with_its_stdin(tmp_path: Path) -> None:
    file = write(tmp_path, configuration({"odd": {**ODD, "prefix": ""}}))
    with anyio.fail_after(GUARD):
        async with over_stdio(command(file, "--stdio")) as client:
            await client.initialize()
            assert (await client.call("fail"))["result"]["isError"] is True
            children = descendants(client.child.pid)
            assert children
        assert client.child.returncode == 0
        assert survivors(children, within=0) == []


async def test_r12_over_stdio_a_call_in_flight_does_not_hold_the_gateway(tmp_path: Path) -> None:
    file = write(tmp_path, configuration({"odd": {**ODD, "prefix": ""}}, shutdown_grace=0.5))
    with anyio.fail_after(GUARD):
        async with over_stdio(command(file, "--stdio")) as client:
            await client.initialize()
            client.tasks.start_soon(lambda: client.call("wait", progressToken="t"))
            await client.hears("notifications/progress")
            children = descendants(client.child.pid)
        assert client.child.returncode == 0
        assert survivors(children, within=0) == []
