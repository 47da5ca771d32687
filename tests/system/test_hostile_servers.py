"""A server that answers with as many entries as a message has room for costs its own calls, and nothing else."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import aiohttp
import anyio
import pytest

from mcproxy.protocol.eras import LATEST_HANDSHAKE
from tests.fakes.clients.raw import CAPABILITIES, RawClient, over_http
from tests.system.running import PYTHON, Gateway, Json, configuration, gateway
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

CALLS = ("content", "structured", "meta", "elicitations")
SIZE = 60 * 2**20
"""Bytes of each answer: nearly `max_message_bytes`."""
MULTIPLE = 6
"""Times SIZE that the gateway may take at its worst: what is read, its copies, and what the allocator keeps."""


def hostile(*more: str) -> Json:
    return {"command": PYTHON, "args": [str(Path(__file__).with_name("hostile_server.py")), str(SIZE), *more]}


def peak_of(running: Gateway) -> int:
    """Bytes of memory at the worst so far."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


class Pings:
    """Pings, one after another, and what the longest took."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self.number = 0
        self.longest = 0.0

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            await self._client.result("ping")
            self.longest = max(self.longest, time.monotonic() - began)
            self.number += 1
            await anyio.sleep(0.005)


async def size_of_answer(running: Gateway, tool: str) -> int:
    """Bytes of the answer to a call, which no client of Python's reads in reasonable time."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
    opening = {
        "protocolVersion": LATEST_HANDSHAKE,
        "capabilities": CAPABILITIES,
        "clientInfo": {"name": "a", "version": "1"},
    }
    headers = {"Accept": "application/json, text/event-stream"}
    async with aiohttp.ClientSession(headers=headers) as http:
        opened = {**message, "method": "initialize", "params": opening}
        async with http.post(running.server("bad"), json=opened) as response:
            session = response.headers["Mcp-Session-Id"]
        async with http.post(running.server("bad"), json=message, headers={"Mcp-Session-Id": session}) as response:
            return sum([len(chunk) async for chunk in response.content.iter_any()])


def report(what: str, running: Gateway, before: int, pings: Pings) -> None:
    grown = (peak_of(running) - before) / 2**20
    print(f"{what}: +{grown:.0f} MiB, {pings.number} pings, the longest {pings.longest:.2f} s", file=sys.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", ["many", "few"])
async def test_r78_lists_of_the_smallest_entries_take_little_memory_and_hold_nobody_up(
    tmp_path: Path, how: str
) -> None:
    async with gateway(tmp_path, configuration({}, watch=False)) as running, over_http(running.url + "/mcp") as client:
        await client.initialize()
        before, pings = peak_of(running), Pings(client)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pings.run)
            with anyio.fail_after(3 * GUARD):
                await running.reload(configuration({"bad": hostile(how)}, watch=False))
                report(how, running, before, pings)
                for tool in CALLS if how == "few" else ():
                    assert await size_of_answer(running, tool) > SIZE // 2
                    report(tool, running, before, pings)
            tasks.cancel_scope.cancel()
        assert pings.number > 20
        assert peak_of(running) - before < MULTIPLE * SIZE


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_r54_what_a_server_says_of_itself_reaches_each_client_in_16_kib(tmp_path: Path) -> None:
    async with gateway(tmp_path, configuration({}, watch=False)) as running:
        before = peak_of(running)
        await running.reload(configuration({"bad": hostile("said")}, watch=False))
        for url in (running.server("bad"), running.url + "/mcp"):
            async with over_http(url) as client:
                assert len(json.dumps(await client.initialize())) < 32 * 1024
        assert peak_of(running) - before < MULTIPLE * SIZE
