"""Servers on the official SDK of one era or of both, each reached by the era that it has."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, Failed, InputRequired
from mcproxy.call.clients import ListChanged
from mcproxy.call.upstreams import Connected, UpstreamChanged
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, Era
from mcproxy.protocol.methods import Kind
from mcproxy.settings import UpstreamSettings
from tests.upstream.support import FakeClient, Running, answering, request, running, tool
from tests.upstream.test_sdk import PATIENT, SDK, accepting, free_port, text

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parent.parent / "conformance" / "server.py"
ELICITOR = Path(__file__).parent.parent / "fakes" / "servers" / "elicitor.py"
ASKABLE: dict[str, object] = {"elicitation": {"form": {}}}


def serving(era: str) -> AbstractAsyncContextManager[Running]:
    return served(lambda port: ["-m", "tests.conformance.server", "--port", str(port), "--era", era])


@asynccontextmanager
async def served(arguments: Callable[[int], list[str]]) -> AsyncIterator[Running]:
    port = free_port()
    command = [sys.executable, *arguments(port)]
    async with await anyio.open_process(command, stdout=None, stderr=None, cwd=SERVER.parents[2]) as server:
        await accepting(port)
        spec = UpstreamSettings(name="u", prefix="u", url=f"http://127.0.0.1:{port}/mcp", timeouts=PATIENT)
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
    spec = UpstreamSettings(name="u", prefix="u", command=sys.executable, args=(str(SDK), "stdio"), timeouts=PATIENT)
    async with running(spec) as it:
        assert text(await it.upstream(tool("add", {"a": 1, "b": 2}))) == "3"
        [connected] = it.events.of(Connected)
        assert connected.identity.era is Era.STATELESS
        assert isinstance(await it.upstream(request("resources/subscribe", uri="test://a")), Complete)


async def test_r58_a_child_of_both_eras_asks_a_client_of_the_handshake_era_in_its_way() -> None:
    spec = UpstreamSettings(name="u", prefix="u", command=sys.executable, args=(str(ELICITOR),), timeouts=PATIENT)
    async with running(spec) as it:
        for _ in range(2):
            assert text(await it.upstream(greeting())) == "Hello, Ada"
        assert [event.identity.era for event in it.events.of(Connected)] == [Era.STATELESS, Era.HANDSHAKE]


async def test_r58_a_child_stays_with_the_era_of_the_client_that_came_first() -> None:
    spec = UpstreamSettings(name="u", prefix="u", command=sys.executable, args=(str(ELICITOR),), timeouts=PATIENT)
    async with running(spec) as it:
        await it.upstream(of_stateless_era(tool("greet")))
        await it.upstream(greeting())
        assert [event.identity.era for event in it.events.of(Connected)] == [Era.STATELESS]


async def test_r58_a_server_of_both_eras_over_http_meets_each_client_in_the_era_of_the_client() -> None:
    async with served(lambda port: [str(ELICITOR), str(port)]) as it:
        assert text(await it.upstream(greeting())) == "Hello, Ada"
        assert isinstance(await it.upstream(of_stateless_era(tool("greet"))), Complete | Failed)
        assert text(await it.upstream(greeting())) == "Hello, Ada"
        assert [event.identity.era for event in it.events.of(Connected)] == [Era.STATELESS]


async def test_a_server_of_the_stateless_era_alone_is_offered_the_handshake_once() -> None:
    client = answering({"action": "accept", "content": {"name": "Ada"}})
    call = tool("test_input_required_result_elicitation", client=client, capabilities=ASKABLE)
    call = replace(call, caller=replace(call.caller, version=LATEST_HANDSHAKE))
    async with serving("modern") as it:
        for _ in range(2):
            assert isinstance(await it.upstream(call), InputRequired)
        assert [event.identity.era for event in it.events.of(Connected)] == [Era.STATELESS]


def greeting() -> Call:
    client = answering({"action": "accept", "content": {"name": "Ada"}})
    call = tool("greet", client=client, capabilities=ASKABLE)
    return replace(call, caller=replace(call.caller, version=LATEST_HANDSHAKE))


def of_stateless_era(call: Call) -> Call:
    return replace(call, caller=replace(call.caller, version=LATEST))
