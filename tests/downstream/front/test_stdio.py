"""Serving over standard input and output, through real pipes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError
from mcproxy.downstream.front.stdio import serve_stdio
from mcproxy.protocol.jsonrpc import first_level
from mcproxy.settings import LimitSettings, Proxy
from tests.downstream.client import initialize, notification, request
from tests.fakes.gateway import FakeGateway, Held, asking, edge_of, quick
from tests.http.timers import COMMANDED, commanded_loop
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


class PipeClient:
    def __init__(self, stdin: int, stdout: int) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self.ended = anyio.Event()
        self._rest = b""

    async def send(self, message: object) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        while data:
            await anyio.wait_writable(self.stdin)
            data = data[os.write(self.stdin, data[:4096]) :]

    async def receive(self) -> Any:
        """The next line, decoded; None at the end."""
        while b"\n" not in self._rest:
            await anyio.wait_readable(self.stdout)
            chunk = os.read(self.stdout, 1 << 16)
            if not chunk:
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    async def ask(self, message: object) -> Any:
        await self.send(message)
        return await self.receive()

    async def open(self, capabilities: dict[str, Any] | None = None, version: str = "2025-11-25") -> Any:
        answer = await self.ask(initialize(version, capabilities))
        await self.send(notification("notifications/initialized"))
        return answer

    def close(self) -> None:
        os.close(self.stdin)


@asynccontextmanager
async def piped(
    gateway: FakeGateway | None = None, proxy: Proxy | None = None, stop: anyio.Event | None = None
) -> AsyncIterator[PipeClient]:
    theirs, ours = os.pipe()
    answers, out = os.pipe()
    client = PipeClient(ours, answers)
    async with edge_of(gateway or FakeGateway(), proxy) as context, anyio.create_task_group() as tasks:

        async def serve() -> None:
            await serve_stdio(context, theirs, out, stop=stop)
            os.close(out)
            os.close(theirs)
            client.ended.set()

        tasks.start_soon(serve)
        yield client
        tasks.cancel_scope.cancel()
    os.close(answers)


async def test_a_session_opens_and_answers() -> None:
    with anyio.fail_after(GUARD):
        async with piped() as client:
            assert (await client.open())["result"]["serverInfo"]["name"] == "fake"
            assert (await client.ask(request("1", "tools/list")))["id"] == "1"


async def test_r12_it_ends_when_its_input_ends() -> None:
    gateway = FakeGateway()
    with anyio.fail_after(GUARD):
        async with piped(gateway) as client:
            await client.open()
            client.close()
            await client.ended.wait()
            assert gateway.present == []


async def test_r12_calls_in_flight_may_end_first() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with piped(gateway) as client:
            await client.open()
            await client.send(request(1, "tools/call"))
            await held.arrived.wait()
            client.close()
            held.release.set()
            assert (await client.receive())["id"] == 1
            await client.ended.wait()


async def test_r12_a_question_that_no_input_can_answer_holds_up_nothing() -> None:
    async def answer(call: Call) -> Outcome:
        refusals = []
        for _ in range(2):
            with pytest.raises(McpError) as refused:
                await call.client.ask(InputRequest("sampling/createMessage", {}))
            refusals.append(refused.value.code)
        return Complete(first_level({"content": [], "structuredContent": {"codes": refusals}}))

    gateway = FakeGateway()
    gateway.answers["tools/call"] = answer
    with anyio.fail_after(GUARD):
        async with piped(gateway, quick(shutdown_grace=10 * GUARD)) as client:
            await client.open({"sampling": {}})
            assert (await client.ask(request(1, "tools/call")))["method"] == "sampling/createMessage"
            client.close()
            assert (await client.receive())["result"]["structuredContent"] == {"codes": [-32600, -32600]}
            await client.ended.wait()


async def test_r12_but_not_for_ever() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with piped(gateway, quick(shutdown_grace=0.01)) as client:
            await client.open()
            await client.send(request(1, "tools/call"))
            await held.arrived.wait()
            client.close()
            await client.ended.wait()
            assert held.cancelled.is_set()


async def test_r9_told_to_stop_it_lets_calls_end_and_takes_no_more() -> None:
    held, stop = Held(), anyio.Event()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with piped(gateway, stop=stop) as client:
            await client.open()
            await client.send(request(1, "tools/call"))
            await held.arrived.wait()
            stop.set()
            await anyio.wait_all_tasks_blocked()
            assert "shutting down" in (await client.ask(request(2, "tools/call")))["error"]["message"]
            held.release.set()
            assert "result" in await client.receive()
            await client.ended.wait()


async def test_r9_told_to_stop_it_ends_though_its_input_stays_open() -> None:
    stop = anyio.Event()
    with anyio.fail_after(GUARD):
        async with piped(stop=stop) as client:
            await client.open()
            stop.set()
            await client.ended.wait()


@COMMANDED
@pytest.mark.parametrize("batched", [False, True])
async def test_r9_a_call_that_outlasts_the_grace_is_answered_that_its_outcome_is_unknown(batched: bool) -> None:
    held, stop = Held(), anyio.Event()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with piped(gateway, quick(shutdown_grace=10), stop) as client:
            await client.open(version="2025-03-26")
            call = request(1, "tools/call")
            await client.send([call] if batched else call)
            await held.arrived.wait()
            stop.set()
            for seconds in (0, 9):
                await commanded_loop().advance(seconds)
            assert not held.cancelled.is_set()
            await commanded_loop().advance(1)
            received = await client.receive()
            answer = received[0] if batched else received
            assert (answer["id"], "unknown" in answer["error"]["message"]) == (1, True)
            await client.ended.wait()


async def test_it_ends_when_its_output_is_not_read() -> None:
    with anyio.fail_after(GUARD):
        async with piped(proxy=quick(write_timeout=0.05)) as client:
            await client.open()
            await client.send(request(1, "tools/call", {"padding": "x" * 1_000_000}))
            await client.ended.wait()


@pytest.mark.parametrize("junk", [b"{\n", b"\xff\xfe\n", b"[1,2\n", b"null\n", b'"\n', b"[]\n"])
async def test_junk_is_answered_and_survived(junk: bytes) -> None:
    with anyio.fail_after(GUARD):
        async with piped() as client:
            await client.open()
            answer = await client.ask(junk)
            assert answer["id"] is None
            assert answer["error"]["code"] in {-32700, -32600}
            assert (await client.ask(request(1, "ping")))["result"] == {}


async def test_a_byte_order_mark_is_no_junk() -> None:
    with anyio.fail_after(GUARD):
        async with piped() as client:
            await client.send(b"\xef\xbb\xbf")
            assert "result" in await client.open()


async def test_empty_lines_are_skipped() -> None:
    with anyio.fail_after(GUARD):
        async with piped() as client:
            await client.send(b"\n \r\n")
            assert (await client.ask(request(1, "ping")))["id"] == 1


async def test_lines_of_many_mebibytes_go_both_ways() -> None:
    with anyio.fail_after(GUARD):
        async with piped() as client:
            await client.open()
            padding = "x" * (8 << 20)
            answers: list[Any] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.send, request(1, "tools/call", {"padding": padding}))
                answers.append(await client.receive())
            assert answers[0]["result"]["structuredContent"]["params"]["padding"] == padding


async def test_a_line_over_the_limit_is_refused_and_the_next_one_served() -> None:
    with anyio.fail_after(GUARD):
        async with piped(proxy=quick(LimitSettings(max_body_bytes=1000))) as client:
            await client.open()
            answer = await client.ask(request(1, "tools/call", {"padding": "x" * 100_000}))
            assert "max_body_bytes" in answer["error"]["message"]
            assert (await client.ask(request(2, "ping")))["id"] == 2


async def test_a_question_is_answered_on_the_same_pipe() -> None:
    gateway = FakeGateway()
    gateway.answers["tools/call"] = asking("sampling/createMessage")
    with anyio.fail_after(GUARD):
        async with piped(gateway) as client:
            await client.open({"sampling": {}})
            question = await client.ask(request(1, "tools/call"))
            answer = await client.ask({"jsonrpc": "2.0", "id": question["id"], "result": {"role": "assistant"}})
            assert answer["result"]["structuredContent"]["answer"] == {"role": "assistant"}


async def test_r25_a_cancelled_call_gets_no_answer() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with piped(gateway) as client:
            await client.open()
            await client.send(request(1, "tools/call"))
            await held.arrived.wait()
            await client.send(notification("notifications/cancelled", {"requestId": 1}))
            await held.cancelled.wait()
            assert (await client.ask(request(2, "ping")))["id"] == 2


async def test_what_else_prints_does_not_reach_the_client() -> None:
    sent = "\n".join(json.dumps(message) for message in (initialize(), request(1, "tools/list")))
    with anyio.fail_after(GUARD):
        done = await anyio.run_process([sys.executable, "-m", "tests.fakes.stdio_gateway"], input=sent.encode())
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [0, 1]
    assert b"not a message" in done.stderr


async def test_a_regular_file_can_be_served(tmp_path: Any) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("\n".join(json.dumps(message) for message in (initialize(), request(1, "tools/list"))))
    with anyio.fail_after(GUARD), source.open() as stdin, target.open("w") as stdout:
        async with edge_of(FakeGateway()) as context:
            await serve_stdio(context, stdin.fileno(), stdout.fileno())
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()] == [0, 1]


NOT_JSON = {
    "half of a surrogate pair": rb'"\ud800"',
    "NaN": b"NaN",
    "invalid UTF-8": b'"\xff"',
    "deep nesting": b"[" * 100_000 + b"]" * 100_000,
}


@pytest.mark.parametrize("value", NOT_JSON.values(), ids=NOT_JSON.keys())
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "marked"])
async def test_a_request_that_is_not_json_is_answered_at_once_with_its_id(mark: bytes, value: bytes) -> None:
    with anyio.fail_after(GUARD):
        async with piped() as client:
            await client.open()
            await client.send(mark + b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":%b}}\n' % value)
            answer = await client.receive()
    assert (answer["id"], answer["error"]["code"]) == (7, -32700)


@pytest.mark.parametrize("value", NOT_JSON.values(), ids=NOT_JSON.keys())
async def test_an_answer_that_is_not_json_fails_the_call_that_asked_at_once(value: bytes) -> None:
    gateway = FakeGateway()
    gateway.answers["tools/call"] = asking("roots/list")
    with anyio.fail_after(GUARD):
        async with piped(gateway) as client:
            await client.open(capabilities={"roots": {}})
            await client.send(request(1, "tools/call"))
            asked = await client.receive()
            await client.send(b'{"jsonrpc":"2.0","id":%d,"result":{"roots":%b}}\n' % (asked["id"], value))
            answer = await client.receive()
    assert (answer["id"], answer["error"]["code"]) == (1, -32700)
