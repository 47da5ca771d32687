"""The HTTP listener: clients that keep it waiting, and how it stops."""

from __future__ import annotations

import json
import select
import socket

import anyio
import anyio.to_thread
import pytest

from tests.downstream.client import EventReader, RawClient, client_of, request
from tests.fakes.gateway import FakeGateway, Held, Served, quick, served
from tests.http.timers import COMMANDED, commanded_loop
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def post_and_take_nothing(served: Served, client: RawClient, body: bytes) -> bool:
    """Posts, reads nothing of the answer, and returns whether the server hung up before the guard ended."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    headers = {"Host": f"{host}:{port}", "Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in {**headers, **client.headers}.items())]
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((host, int(port)))
        stuck.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        hung_up = select.poll()
        hung_up.register(stuck, 0)
        return bool(hung_up.poll(GUARD * 1000))


@pytest.mark.parametrize("head", [b"", b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"])
async def test_r8_a_connection_without_a_whole_request_head_is_closed(head: bytes) -> None:
    with anyio.fail_after(GUARD):
        async with served(proxy=quick(connection_idle=0.05)) as gateway:
            stream = await anyio.connect_tcp("127.0.0.1", int(gateway.url.rpartition(":")[2]))
            async with stream:
                await stream.send(head)
                # A head that comes once the server has closed is answered with a reset.
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_r8_r23_a_client_that_takes_nothing_is_disconnected_and_no_other_notices(accept: str) -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(proxy=quick(write_timeout=0.2)) as gateway,
            client_of(gateway) as client,
            client_of(gateway) as other,
        ):
            await client.open()
            await other.open()
            client.headers["Accept"] = accept
            body = json.dumps(request(1, "tools/call", {"padding": "x" * 12_000_000})).encode()
            async with anyio.create_task_group() as tasks:

                async def get_stuck() -> None:
                    assert await anyio.to_thread.run_sync(post_and_take_nothing, gateway, client, body)

                tasks.start_soon(get_stuck)
                for id in range(20):
                    assert (await other.ask(request(id, "ping")))["result"] == {}
            assert (await client.ask(request(2, "ping"), accept="application/json"))["result"] == {}


async def test_r9_stopping_lets_calls_end_and_ends_idle_streams_at_once() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with (
            served(gateway, quick(stream_after=0.01)) as running,
            client_of(running) as busy,
            client_of(running) as idle,
        ):
            await busy.open()
            await idle.open()
            async with idle.listen() as listening, busy.post(request(1, "tools/call")) as response:
                await held.arrived.wait()
                running.stop.set()
                assert await listening.rest() == []
                assert not running.stopped.is_set()
                held.release.set()
                assert [answer["id"] for answer in await EventReader(response).rest()] == [1]
                await running.stopped.wait()
    assert gateway.present == []


async def test_r9_a_call_that_does_not_end_is_cut_off_when_the_grace_is_over() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with (
            served(gateway, quick(stream_after=0.01, shutdown_grace=0.1)) as running,
            client_of(running) as client,
        ):
            await client.open()
            async with client.post(request(1, "tools/call")) as response:
                await held.arrived.wait()
                running.stop.set()
                answer = await EventReader(response).message()
            await held.cancelled.wait()
            await running.stopped.wait()
    assert answer["id"] == 1
    assert "shut down" in answer["error"]["message"]


@COMMANDED
async def test_r9_a_call_that_does_not_end_delays_the_stop_by_one_grace_and_not_by_two() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with (
            served(gateway, quick(shutdown_grace=10)) as running,
            client_of(running) as client,
        ):
            await client.open()
            async with client.post(request(1, "tools/call"), accept="text/event-stream"):
                await held.arrived.wait()
                running.stop.set()
                for seconds in (0, 9):
                    await commanded_loop().advance(seconds)
                    assert not held.cancelled.is_set()
                await commanded_loop().advance(1)
                await running.stopped.wait()
            assert held.cancelled.is_set()
