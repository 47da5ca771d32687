"""What a single caller can make the gateway keep: little, whatever it sends."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from mcproxy.catalog.uris import MAX_URI
from mcproxy.downstream.handshake.session_ids import MAX_KEPT
from mcproxy.protocol.jsonrpc import INVALID_PARAMS
from tests.downstream.client import client_of, initialize
from tests.fakes.gateway import served
from tests.fakes.upstream import FakeUpstream, complete, decoded, error, house

pytestmark = pytest.mark.anyio

MUCH = "a" * 2_000_000


@pytest.fixture
def tracing() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize(
    "more",
    [
        {"capabilities": {"x": MUCH}},
        {"capabilities": {MUCH: {}}},
        {"clientInfo": {"name": "a", "version": "1", "x": MUCH}},
        {"clientInfo": {"name": MUCH, "version": MUCH}},
        {"_meta": {"x": MUCH}},
    ],
    ids=["a capability", "its name", "the client's info", "its name and version", "what surrounds them"],
)
async def test_r54_a_session_keeps_little_of_what_its_client_said_when_it_opened(more: dict[str, Any]) -> None:
    message = initialize()
    message["params"] |= more
    async with served() as gateway, client_of(gateway) as client:
        with anyio.fail_after(20):
            assert "result" in await client.ask(initialize())
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(5):
                assert "result" in await client.ask(message)
            after, _ = tracemalloc.get_traced_memory()
        callers = [listener.caller for listener in gateway.gateway.present]
        assert len(callers) == 6
        for caller in callers:
            said = sum(len(key) + len(value) for key, value in caller.capabilities.items())
            assert said + len(caller.info or b"") <= MAX_KEPT
        assert after - before < 4 * len(MUCH)


async def test_r54_what_a_client_declares_is_known_though_much_stands_beside_it() -> None:
    async with served() as gateway, client_of(gateway) as client:
        await client.ask(initialize(capabilities={"x": MUCH, "sampling": {}, "elicitation": {"form": {}}}))
        assert set(gateway.gateway.present[0].caller.capabilities) == {"sampling", "elicitation"}


async def test_r54_nobody_subscribes_to_a_uri_without_end() -> None:
    upstream = FakeUpstream("a", resources={"subscribe": True})
    upstream.answers["resources/subscribe"] = lambda call: complete()
    async with house(upstream) as h:
        await h.ready()
        listener = h.listener()
        outcome = await h.call("resources/subscribe", listener=listener, uri="a+file:///" + "x" * MAX_URI)
        assert error(outcome).code == INVALID_PARAMS
        assert h["a"].count("resources/subscribe") == 0
        assert decoded(await h.call("resources/subscribe", listener=listener, uri="a+file:///x")) == {}
