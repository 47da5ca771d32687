"""HTTP with SSE (2024-11-05) on the wire."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest

from mcproxy.call.clients import ListChanged
from mcproxy.call.identity import Principal
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.http.server import Request
from mcproxy.protocol.methods import Kind
from mcproxy.settings import LimitSettings
from tests.downstream.client import EventReader, initialize, notification, request
from tests.fakes.gateway import FakeGateway, Held, IdentifiedBy, Served, asking, nobody_waits, quick, served
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


class SseClient:
    def __init__(self, http: aiohttp.ClientSession, events: EventReader, post_to: str) -> None:
        self.http = http
        self.events = events
        self.post_to = post_to

    async def post(self, message: object, **headers: str) -> int:
        async with self.http.post(self.post_to, json=message, headers=headers) as response:
            return response.status

    async def open(self, capabilities: dict[str, object] | None = None, version: str = "2024-11-05") -> None:
        assert await self.post(initialize(version, capabilities)) == 202
        assert (await self.events.message())["result"]["protocolVersion"] == version
        assert await self.post(notification("notifications/initialized")) == 202


@asynccontextmanager
async def streaming(gateway: Served, path: str = "/sse", **headers: str) -> AsyncIterator[SseClient]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=GUARD)) as http,
        http.get(gateway.url + path, headers={"Accept": "text/event-stream", **headers}) as response,
    ):
        assert response.status == 200, await response.text()
        events = EventReader(response)
        first = await events.next()
        assert first is not None
        assert first.event == "endpoint"
        yield SseClient(http, events, gateway.url + first.data.decode())


@pytest.mark.parametrize("path", ["/sse", "/servers/up/sse"])
async def test_answers_come_on_the_stream(path: str) -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, streaming(gateway, path) as client:
            await client.open()
            assert await client.post(request("a", "tools/list")) == 202
            assert (await client.events.message())["id"] == "a"
            assert gateway.gateway.calls[-1].caller.endpoint == ("up" if "up" in path else "")


@pytest.mark.parametrize(
    ("public_url", "host", "endpoint"),
    [
        ("https://gw.example/tools", "gw.example", "/tools/messages"),
        ("https://gw.example:8443/tools", "GW.example:8443", "/tools/messages"),
        ("https://gw.example:8443/tools", "gw.example", "/tools/messages"),
        ("https://gw.example", "gw.example", "/messages"),
        ("https://gw.example/tools", "localhost", "/messages"),
        ("http://localhost:8443/tools", "localhost:8000", "/messages"),
        ("http://localhost:8443/tools", "localhost:99999", "/messages"),
        (None, "localhost", "/messages"),
    ],
)
async def test_behind_a_proxy_the_endpoint_is_below_the_public_url(
    public_url: str | None, host: str, endpoint: str
) -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(proxy=quick(public_url=public_url)) as gateway,
            aiohttp.ClientSession() as http,
            http.get(f"{gateway.url}/sse", headers={"Accept": "text/event-stream", "Host": host}) as response,
        ):
            first = await EventReader(response).next()
    assert first is not None
    assert first.data.decode().partition("?")[0] == endpoint


async def test_changes_come_once_the_client_is_ready_for_them() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, streaming(gateway) as client:
            await client.post(initialize("2024-11-05"))
            assert "result" in await client.events.message()
            gateway.gateway.present[0].signal(ListChanged(Kind.TOOLS))
            await client.post(notification("notifications/initialized"))
            assert (await client.events.message())["method"] == "notifications/tools/list_changed"


async def test_a_question_comes_on_the_stream_and_its_answer_is_posted() -> None:
    gateway = FakeGateway()
    gateway.answers["tools/call"] = asking("roots/list")
    with anyio.fail_after(GUARD):
        async with served(gateway) as running, streaming(running) as client:
            await client.open({"roots": {}})
            await client.post(request(1, "tools/call"))
            question = await client.events.message()
            await client.post({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}})
            answer = await client.events.message()
            assert answer["result"]["structuredContent"]["answer"] == {"roots": []}


async def test_the_session_and_its_calls_end_with_the_stream() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with served(gateway) as running:
            async with streaming(running) as client:
                await client.open()
                await client.post(request(1, "tools/call"))
                await held.arrived.wait()
            await held.cancelled.wait()
            await gateway.emptied_of(1)
            async with aiohttp.ClientSession() as http, http.post(client.post_to, json=request(1, "ping")) as response:
                assert response.status == 404


async def test_requests_before_initialize_are_refused_but_for_ping() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, streaming(gateway) as client:
            await client.post(request(1, "ping"))
            assert (await client.events.message())["result"] == {}
            await client.post(request(2, "tools/list"))
            assert (await client.events.message())["error"]["code"] == -32600


async def test_a_second_initialize_is_refused() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, streaming(gateway) as client:
            await client.open()
            await client.post(initialize())
            assert (await client.events.message())["error"]["code"] == -32600
            assert len(gateway.gateway.present) == 1


async def test_a_batch_is_answered_as_one() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, streaming(gateway) as client:
            await client.open(version="2025-03-26")
            await client.post([request(1, "ping"), request(2, "tools/list")])
            event = await client.events.next()
            assert event is not None
            assert event.data.startswith(b"[")


async def by_header(request: Request) -> Principal:
    return Principal(request.fields.get("x-user", "nobody"))


async def test_r39_messages_for_anothers_stream_look_unknown() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(identify=IdentifiedBy(by_header)) as gateway,
            streaming(gateway, **{"X-User": "ann"}) as client,
        ):
            assert await client.post(request(1, "ping"), **{"X-User": "bob"}) == 404
            assert await client.post(request(1, "ping"), **{"X-User": "ann"}) == 202


async def by_roles(request: Request) -> Principal:
    return Principal("ann", frozenset(request.fields.get("x-roles", "").split()))


async def test_r38_roles_are_those_of_the_latest_message_and_not_those_that_the_stream_was_opened_with() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(identify=IdentifiedBy(by_roles)) as gateway,
            streaming(gateway, **{"X-Roles": "admin"}) as client,
        ):
            for roles in ("", "reader", "admin reader"):
                assert await client.post(initialize() if not roles else request(1, "ping"), **{"X-Roles": roles}) == 202
                listener = gateway.gateway.present[-1]
                assert listener.caller.principal.roles == set(roles.split())


async def test_r7_an_idle_stream_has_keep_alives() -> None:
    with anyio.fail_after(GUARD):
        async with served(proxy=quick(keep_alive=0.01)) as gateway, streaming(gateway) as client:
            assert await client.events.response.content.readuntil(b":\n\n")


async def test_r7_a_stream_on_which_nothing_comes_has_keep_alives_however_much_its_client_says() -> None:
    async def post_on_and_on(client: SseClient) -> None:
        while True:
            await client.post(notification("notifications/progress"))

    with anyio.fail_after(GUARD):
        async with served(proxy=quick(keep_alive=0.25)) as gateway, streaming(gateway) as client:
            await client.open()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(post_on_and_on, client)
                await client.events.response.content.readuntil(b":\n\n")
                tasks.cancel_scope.cancel()


async def test_a_stream_that_is_refused_for_what_it_brings_does_not_count() -> None:
    twice = [("Accept", "text/event-stream"), ("X-Token", "one"), ("X-Token", "other")]
    async with (
        served(proxy=quick(LimitSettings(max_streams_per_principal=1))) as gateway,
        aiohttp.ClientSession() as http,
    ):
        gateway.reconfigure(forwarded=frozenset({"x-token"}))
        async with http.get(f"{gateway.url}/sse", headers=twice) as response:
            assert response.status == 400
        async with streaming(gateway):
            pass


async def test_streams_are_limited() -> None:
    async with (
        served(proxy=quick(LimitSettings(max_sessions=1))) as gateway,
        streaming(gateway),
        aiohttp.ClientSession() as http,
        http.get(f"{gateway.url}/sse") as response,
    ):
        assert response.status == 503


async def test_r9_a_stream_without_calls_ends_at_once() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, streaming(gateway) as opened, streaming(gateway) as unopened:
            await opened.open()
            gateway.stop.set()
            assert await opened.events.rest() == []
            assert await unopened.events.rest() == []
            await gateway.stopped.wait()


async def test_r54_nothing_is_held_of_what_a_client_left_unread() -> None:
    gc.collect()
    with anyio.fail_after(GUARD):
        async with served() as gateway:
            async with streaming(gateway) as client:
                await client.open()
                for id in range(20):
                    assert await client.post(request(id, "tools/call", {"padding": "x" * 1_000_000})) == 202
                assert any(map(len, _outboxes())), "it all went out: the test shows nothing"
            await gateway.gateway.emptied_of(1)
            assert not any(map(len, _outboxes()))


def _outboxes() -> list[SendBuffer]:
    """All of them, those that only the garbage collector will end included."""
    return [found for found in gc.get_objects() if isinstance(found, SendBuffer)]


async def test_r54_a_stream_goes_on_without_a_task() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, streaming(gateway) as client:
            await nobody_waits()
            await client.open()
