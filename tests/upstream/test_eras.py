"""Servers on the official SDK of one era or of both, each reached by the era that it has."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from mcproxy.call import Complete, Connected, InputRequired, ListChanged, UpstreamChanged
from mcproxy.protocol.eras import Era
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Upstream
from tests.upstream.support import FakeClient, Running, request, running, tool
from tests.upstream.test_sdk import PATIENT, SDK, accepting, free_port, text

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parent.parent / "conformance" / "server.py"


@asynccontextmanager
async def serving(era: str) -> AsyncIterator[Running]:
    port = free_port()
    command = [sys.executable, "-m", "tests.conformance.server", "--port", str(port), "--era", era]
    async with await anyio.open_process(command, stdout=None, cwd=SERVER.parents[2]) as server:
        await accepting(port)
        spec = Upstream(name="u", prefix="u", url=f"http://127.0.0.1:{port}/mcp", timeouts=PATIENT)
        try:
            async with running(spec) as it:
                yield it
        finally:
            with suppress(ProcessLookupError):
                server.kill()


@pytest.mark.parametrize(
    ("era", "spoken"), [("modern", Era.STATELESS), ("both", Era.STATELESS), ("legacy", Era.HANDSHAKE)]
)
async def test_r58_a_server_over_http_is_spoken_to_in_the_newest_era_that_it_has(era: str, spoken: Era) -> None:
    async with serving(era) as it:
        assert text(await it.upstream(tool("test_simple_text"))).startswith("This is a simple text")
        [connected] = it.events.of(Connected)
        assert connected.identity.era is spoken


async def test_a_stateless_server_tells_asks_mirrors_and_announces() -> None:
    client = FakeClient()
    capabilities: dict[str, object] = {"elicitation": {"form": {}}}
    async with serving("modern") as it:
        assert text(await it.upstream(tool("test_tool_with_progress", client=client))) == "done"
        asked = await it.upstream(tool("test_input_required_result_elicitation", capabilities=capabilities))
        assert isinstance(asked, InputRequired)
        assert [question.method for question in asked.requests.values()] == ["elicitation/create"]
        assert text(await it.upstream(tool("test_x_mcp_header", {"region": "eu"}))) == "region=eu"
        assert isinstance(await it.upstream(request("resources/subscribe", uri="test://watched-resource")), Complete)
        await it.upstream(tool("test_trigger_tool_change"))
        await it.events.until(lambda: bool(it.events.of(UpstreamChanged)))
    assert [params["progress"] for _, params in client.told] == [0, 50, 100]
    assert {event.change for event in it.events.of(UpstreamChanged)} == {ListChanged(Kind.TOOLS)}


async def test_a_stateless_server_over_stdio_is_found() -> None:
    spec = Upstream(name="u", prefix="u", command=sys.executable, args=(str(SDK), "stdio"), timeouts=PATIENT)
    async with running(spec) as it:
        assert text(await it.upstream(tool("add", {"a": 1, "b": 2}))) == "3"
        [connected] = it.events.of(Connected)
        assert connected.identity.era is Era.STATELESS
        assert isinstance(await it.upstream(request("resources/subscribe", uri="test://a")), Complete)
