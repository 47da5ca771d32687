"""Servers that run only while they are needed (`start: on_demand`, `idle_stop`), with real children and clients."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest

from mcproxy.cli.access.lock import LockMode, lock
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.loading import load
from tests.fakes.clients.raw import RawClient, over_http
from tests.fakes.upstream import tool
from tests.processes import descendants
from tests.system.running import Gateway, Json, configuration, serving, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

BEFORE, AFTER = [tool("push", description="Pushes."), tool("swap")], [tool("push", description="Pulls."), tool("swap")]


def swapper(folder: Path, **settings: object) -> Json:
    """A server whose tools are in a file, and which notes each of its starts in another."""
    listing = folder / "tools"
    if not listing.exists():
        listing.write_text(json.dumps(BEFORE))
    script = (
        f"echo started >> {folder}/starts; exec {sys.executable} -m tests.fakes.servers.swapper {listing} {listing}"
    )
    return {"command": "sh", "args": ["-c", script], "cwd": str(Path(__file__).parents[2]), **settings}


def starts(folder: Path) -> int:
    noted = folder / "starts"
    return len(noted.read_text().splitlines()) if noted.exists() else 0


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # it is another process that it waits for
        await anyio.sleep(0.02)


async def locked(folder: Path, server: Json) -> Path:
    config = folder / "mcproxy.json"
    config.write_text(json.dumps(configuration({"up": server})))
    with anyio.fail_after(GUARD):
        assert await lock(load(config, {}), folder, LockMode.WRITE) == ExitCode.OK
    return config


@asynccontextmanager
async def client_of(folder: Path, server: Json) -> AsyncIterator[tuple[Gateway, RawClient]]:
    """A client of a gateway in front of `server`, of which it knows only what the lock says."""
    file = write(folder, configuration({"up": server}))
    async with serving(folder, file) as running, over_http(running.url + "/mcp") as client:
        await client.initialize()
        with anyio.fail_after(GUARD):
            yield running, client


def held_swapper(folder: Path, **settings: object) -> Json:
    """The same server, whose starts wait for the file `go`."""
    server = swapper(folder, start="on_demand", **settings)
    wait = f"echo started >> {folder}/starts; while [ ! -e {folder}/go ]; do sleep 0.05; done; "
    server["args"][1] = server["args"][1].replace(f"echo started >> {folder}/starts; ", wait)
    return server


async def names(client: RawClient) -> list[str]:
    return [entry["name"] for entry in (await client.result("tools/list"))["tools"]]


async def test_a_server_that_the_lock_knows_is_listed_without_a_start_and_started_once_by_concurrent_calls(
    tmp_path: Path,
) -> None:
    server = swapper(tmp_path, start="on_demand", required=True)
    await locked(tmp_path, server)
    before = starts(tmp_path)
    async with client_of(tmp_path, server) as (running, client):
        assert await names(client) == ["up__push", "up__swap"]
        assert descendants(running.process.pid) == []
        async with aiohttp.ClientSession() as http, http.get(running.url + "/readyz") as ready:
            assert ready.status == 200
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(client.result, "tools/call", {"name": "up__push"})
    assert starts(tmp_path) == before + 1


async def test_a_server_without_calls_is_stopped_and_the_next_call_starts_it_again(tmp_path: Path) -> None:
    server = swapper(tmp_path, start="on_demand", idle_stop="200ms")
    async with client_of(tmp_path, server) as (running, client):
        # The lock knows nothing of it: it is started once, to learn its lists.
        since = 0
        for times in (1, 2, 3):
            idle = await running.log.says(lambda entry: entry.get("event") == "upstream idle", since)
            since = 1 + next(index for index, entry in enumerate(running.log.entries) if entry is idle)
            assert await names(client) == ["up__push", "up__swap"]
            assert starts(tmp_path) == times
            assert (await client.result("tools/call", {"name": "up__push"}))["content"] == []


async def test_clients_are_told_where_a_start_brings_other_lists_than_the_lock(tmp_path: Path) -> None:
    server = swapper(tmp_path, start="on_demand")
    await locked(tmp_path, server)
    (tmp_path / "tools").write_text(json.dumps(AFTER))
    async with client_of(tmp_path, server) as (_, client):
        listed = (await client.result("tools/list"))["tools"]
        assert listed[0]["description"] == "Pushes."
        await client.result("tools/call", {"name": "up__push"})
        await client.hears("notifications/tools/list_changed")
        listed = (await client.result("tools/list"))["tools"]
        assert listed[0]["description"] == "Pulls."


@pytest.mark.parametrize("change", ["removed", "changed", "adopted"])
async def test_r49_a_call_that_a_server_is_being_started_for_is_made_though_the_configuration_changes(
    tmp_path: Path, change: str
) -> None:
    server = held_swapper(tmp_path)
    (tmp_path / "go").touch()
    await locked(tmp_path, server)
    (tmp_path / "go").unlink()
    before = starts(tmp_path)
    async with client_of(tmp_path, server) as (running, client):
        answers: list[Json] = []

        async def call() -> None:
            answers.append(await client.request("tools/call", {"name": "up__push"}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(lambda: starts(tmp_path) > before)
            changes: Json = {"changed": {"env": {"OTHER": "1"}}, "adopted": {"max_in_flight": 7}}
            settings = configuration({} if change == "removed" else {"up": {**server, **changes[change]}})
            since = len(running.log.entries)  # a file that is watched may be read before the signal comes
            write(tmp_path, settings)
            running.process.send_signal(signal.SIGHUP)
            await running.log.says(lambda entry: entry.get("event") == "configuration reloaded", since)
            assert answers == []
            (tmp_path / "go").touch()
        assert answers[0]["result"]["content"] == []
        assert starts(tmp_path) == before + 1, "the next call starts it with the other settings"
        if change == "removed":
            await running.log.says(lambda entry: entry.get("event") == "upstream removed")
            await until(lambda: descendants(running.process.pid) == [])
