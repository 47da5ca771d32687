"""The stateless era over stdio, beside the handshake's on the same pipe."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.clients import ListChanged
from mcproxy.downstream.front.stdio import serve_stdio
from mcproxy.protocol.jsonrpc import first_level, raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings import LimitSettings, Proxy
from tests.downstream.client import initialize, notification
from tests.downstream.client import request as bare
from tests.downstream.modern import SUBSCRIPTION, VERSION, request
from tests.fakes.gateway import FakeGateway, Held, edge_of, quick
from tests.http.timers import COMMANDED, commanded_loop
from tests.judge import Judge
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

TOOLS = {"notifications": {"toolsListChanged": True}}
CALL = {"name": "t"}


class PipeClient:
    """The client's end of two pipes. What it gets is judged."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self.judge = Judge()
        self.ended = anyio.Event()
        self._stdin = stdin
        self._stdout = stdout
        self._received = b""

    def send(self, message: dict[str, Any]) -> None:
        self.judge.sent(message)
        os.write(self._stdin, json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        os.close(self._stdin)

    async def message(self) -> dict[str, Any]:
        while b"\n" not in self._received:
            await anyio.wait_readable(self._stdout)
            self._received += os.read(self._stdout, 65536)
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        self.judge.received(message)
        return message


@asynccontextmanager
async def piped(
    gateway: FakeGateway, proxy: Proxy | None = None, stop: anyio.Event | None = None
) -> AsyncIterator[PipeClient]:
    stdin, client_out = os.pipe()
    client_in, stdout = os.pipe()
    client = PipeClient(client_out, client_in)
    async with edge_of(gateway, proxy) as context, anyio.create_task_group() as tasks:

        async def serve() -> None:
            await serve_stdio(context, stdin, stdout, stop=stop)
            client.ended.set()

        tasks.start_soon(serve)
        yield client
        tasks.cancel_scope.cancel()
    for fd in (stdin, stdout, client_in):
        os.close(fd)


async def test_a_request_in_its_envelope_needs_no_handshake() -> None:
    gateway = FakeGateway()
    with anyio.fail_after(GUARD):
        async with piped(gateway) as client:
            client.send(request(1, "server/discover"))
            discovered = (await client.message())["result"]
            assert discovered["supportedVersions"][0] == VERSION
            client.send(request("x", "tools/list"))
            assert (await client.message())["id"] == "x"
            assert [call.caller.session for call in gateway.calls] == [None, None]
            client.close()


async def test_both_eras_share_the_pipe() -> None:
    with anyio.fail_after(GUARD):
        async with piped(FakeGateway()) as client:
            client.send(initialize())
            assert (await client.message())["result"]["protocolVersion"] == "2025-11-25"
            client.send(request(1, "tools/list"))
            assert (await client.message())["result"]["resultType"] == "complete"
            client.judge.version = "2025-11-25"
            client.send(bare(2, "tools/list"))
            assert "resultType" not in (await client.message())["result"]
            client.close()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (request(1, "ping"), -32601),
        (request(1, "no/such"), -32601),
        (request(1, "tools/list", meta={"io.modelcontextprotocol/clientCapabilities": None}), -32602),
        (request(1, "tools/list", meta={"io.modelcontextprotocol/protocolVersion": "1900-01-01"}), -32022),
        (request(1, "subscriptions/listen"), -32602),
    ],
)
async def test_what_cannot_be_served_is_refused_with_its_code(message: dict[str, Any], code: int) -> None:
    with anyio.fail_after(GUARD):
        async with piped(FakeGateway()) as client:
            client.send(message)
            answer = await client.message()
            assert (answer["id"], answer["error"]["code"]) == (1, code)
            client.close()


async def test_r25_a_cancelled_request_is_cancelled_and_never_answered() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with piped(gateway) as client:
            client.send(request(1, "tools/call", CALL))
            await held.arrived.wait()
            client.send(notification("notifications/cancelled", {"requestId": "1"}))
            client.send(request(2, "tools/list"))
            assert (await client.message())["id"] == 2
            assert not held.cancelled.is_set()
            client.send(notification("notifications/cancelled", {"requestId": 1}))
            await held.cancelled.wait()
            client.send(request(3, "tools/list"))
            assert (await client.message())["id"] == 3
            client.close()


async def test_r47_a_slow_request_delays_no_other() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with piped(gateway) as client:
            client.send(request(1, "tools/call", CALL))
            client.send(request(2, "tools/list"))
            assert (await client.message())["id"] == 2
            held.release.set()
            assert (await client.message())["id"] == 1
            client.close()


async def test_an_id_in_flight_is_not_taken_twice() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    sent: list[Any] = []
    with anyio.fail_after(GUARD):
        async with piped(gateway) as client:
            client.send(request(1, "tools/call", CALL))
            client.send(request(1, "tools/list"))
            sent.append(await client.message())
            assert sent[0]["error"]["code"] == -32600
            assert len(gateway.calls) == 1
            client.close()


async def test_too_many_requests_at_once_are_refused() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with piped(gateway, quick(LimitSettings(max_calls_per_session=1))) as client:
            client.send(request(1, "tools/call", CALL))
            client.send(request(2, "tools/list"))
            answer = await client.message()
            assert (answer["id"], answer["error"]["code"]) == (2, -32603)
            held.release.set()
            assert (await client.message())["id"] == 1
            client.close()


async def test_r24_progress_has_the_token_of_its_request() -> None:
    async def report(call: Call) -> Outcome:
        call.client.notify("notifications/progress", {"progress": raw(1)})
        return Complete(first_level({"content": []}))

    gateway = FakeGateway()
    gateway.answers["tools/call"] = report
    with anyio.fail_after(GUARD):
        async with piped(gateway) as client:
            client.send(request(1, "tools/call", CALL, {"progressToken": "7"}))
            assert (await client.message())["params"]["progressToken"] == "7"
            assert (await client.message())["id"] == 1
            client.close()


async def test_subscriptions_share_the_channel_each_under_its_own_id() -> None:
    gateway = FakeGateway()
    with anyio.fail_after(GUARD):
        async with piped(gateway) as client:
            for id in (1, "1"):
                client.send(request(id, "subscriptions/listen", TOOLS))
            acknowledged = [await client.message(), await client.message()]
            assert {tag(message) for message in acknowledged} == {1, "1"}
            for listener in gateway.present:
                listener.signal(ListChanged(Kind.TOOLS))
            assert {tag(await client.message()), tag(await client.message())} == {1, "1"}
            client.send(notification("notifications/cancelled", {"requestId": "1"}))
            await gateway.emptied_of(1)
            (left,) = gateway.present
            left.signal(ListChanged(Kind.TOOLS))
            assert tag(await client.message()) == 1
            client.close()


async def test_r12_the_end_of_input_ends_all_with_streams_closed_and_calls_answered() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with piped(gateway) as client:
            client.send(request("s", "subscriptions/listen", TOOLS))
            await client.message()
            client.send(request(1, "tools/call", CALL))
            await held.arrived.wait()
            client.close()
            closing = await client.message()
            assert (closing["id"], closing["result"]["_meta"][SUBSCRIPTION]) == ("s", "s")
            assert (await client.message())["method"] == "notifications/cancelled"
            held.release.set()
            assert (await client.message())["id"] == 1
            await client.ended.wait()
            assert not gateway.present


@COMMANDED
async def test_r9_told_to_stop_it_closes_streams_and_says_what_it_cut_off() -> None:
    held, stop = Held(), anyio.Event()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with piped(gateway, quick(shutdown_grace=10), stop) as client:
            client.send(request("s", "subscriptions/listen", TOOLS))
            await client.message()
            client.send(request(1, "tools/call", CALL))
            await held.arrived.wait()
            stop.set()
            assert "result" in await client.message()
            ended = await client.message()
            assert (ended["method"], ended["params"]) == ("notifications/cancelled", {"requestId": "s"})
            client.send(request(2, "tools/call", CALL))
            assert "shutting down" in (await client.message())["error"]["message"]
            await commanded_loop().advance(10)
            cut_off = await client.message()
            assert (cut_off["id"], "unknown" in cut_off["error"]["message"]) == (1, True)
            await client.ended.wait()
            assert held.cancelled.is_set()


def tag(message: dict[str, Any]) -> object:
    """The subscription that a notification is of."""
    tagged: object = message["params"]["_meta"][SUBSCRIPTION]
    return tagged
