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
from tests.downstream.modern import modern_client_of
from tests.downstream.modern import request as modern_request
from tests.fakes.gateway import served
from tests.fakes.upstream import FakeUpstream, complete, decoded, error, house
from tests.timeouts import GUARD

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
        with anyio.fail_after(GUARD):
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


async def test_r54_the_length_of_a_subscribed_uri_is_bounded() -> None:
    upstream = FakeUpstream("a", resources={"subscribe": True})
    upstream.answers["resources/subscribe"] = lambda call: complete()
    async with house(upstream) as h:
        await h.ready()
        listener = h.listener()
        outcome = await h.call("resources/subscribe", listener=listener, uri="a+file:///" + "x" * MAX_URI)
        assert error(outcome).code == INVALID_PARAMS
        assert h["a"].count("resources/subscribe") == 0
        assert decoded(await h.call("resources/subscribe", listener=listener, uri="a+file:///x")) == {}


@pytest.mark.usefixtures("tracing")
async def test_r54_streams_of_long_uris_take_little_memory_however_many_they_are() -> None:
    upstream = FakeUpstream("a", resources={"subscribe": True})
    upstream.answers["resources/subscribe"] = lambda call: complete()
    async with house(upstream) as h:
        await h.ready()
        before, _ = tracemalloc.get_traced_memory()
        for stream in range(4):
            listener = h.listener()
            for number in range(1000):
                uri = f"a+file:///{stream}/{number}/".ljust(MAX_URI, "x")
                await h.call("resources/subscribe", listener=listener, uri=uri)
        after, _ = tracemalloc.get_traced_memory()
        assert after - before < 8 * h.settings.proxy.limits.max_subscription_bytes_per_principal


@pytest.mark.parametrize(
    ("notifications", "setting"),
    [
        ({"resourceSubscriptions": [f"a+file:///{n}".ljust(8000, "x") for n in range(600)]}, "max_subscription_bytes"),
        ({"resourceSubscriptions": [f"a:{n}" for n in range(1001)]}, "max_subscriptions_per_session"),
    ],
)
async def test_r54_a_stream_of_too_many_names_is_refused_with_the_setting(
    notifications: dict[str, Any], setting: str
) -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        status, answer = await client.answer(
            modern_request(1, "subscriptions/listen", {"notifications": notifications})
        )
    assert (status, setting in answer["error"]["message"]) == (400, True)


async def test_r54_a_stream_keeps_little_of_what_its_client_says_of_itself() -> None:
    said = {"io.modelcontextprotocol/clientCapabilities": {"experimental": {"x": "x" * 20_000}}}
    async with served() as gateway, modern_client_of(gateway) as client:
        listen = modern_request(1, "subscriptions/listen", {"notifications": {}}, said)
        status, answer = await client.answer(listen)
    assert (status, "client capabilities" in answer["error"]["message"]) == (400, True)
