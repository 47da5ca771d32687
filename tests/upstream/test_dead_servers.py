"""How often a server that will not come back is asked in a simulated day, all requests counted."""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import anyio
import pytest

from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.call.upstreams import LinkState
from mcproxy.gateway.listings.internal_calls import internal_call
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.protocol.eras import LATEST
from mcproxy.settings import Proxy, UpstreamSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.supervisor import Supervisor
from tests.upstream.support import Events, failure, tool, value

DAY = 86_400.0
HOUR = 3600.0
TRANSIT = 0.005
"""Real seconds for what is on its way over the loopback, before the clock jumps to the next timer."""


class JumpingSelector(selectors.DefaultSelector):
    """Jumps to the next timer instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0 if timeout is not None and timeout <= 0 else TRANSIT)
        if not found and timeout is not None and timeout > 0:
            self.now += timeout
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class Site:
    """A server that answers every request with `status`, or not at all; counts requests and connections."""

    def __init__(self, status: int | None) -> None:
        self.status = status
        self.requests: Counter[str] = Counter()
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests[head.split()[0].decode()] += 1
                lines = [line.split(b":") for line in head.lower().split(b"\r\n")]
                length = next((int(line[1]) for line in lines if line[0] == b"content-length"), 0)
                body = await reader.readexactly(length)
                if self.status is None:
                    continue
                answer = ANSWERS.get(next((name for name in ANSWERS if name in body), b""), b"")
                status, text = (200, answer) if self.status == 200 and answer else (self.status, b"{}")
                id = body.split(b'"id":')[1].split(b",")[0].rstrip(b"}") if b'"id":' in body else b"0"
                text = text.replace(b"ID", id)
                if self.status == 200 and not answer:
                    status, text = (202, b"") if b"notifications/" in body else (405, b"")
                writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n" % status)
                writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


ANSWERS = {
    b'"initialize"': b'{"jsonrpc":"2.0","id":ID,"result":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}',
    b'"tools/call"': b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"value":"back"}}}',
}


def simulated(
    site: Site, during: Callable[[Supervisor], Awaitable[object]], url: str = "", seconds: float = DAY, **settings: Any
) -> None:
    """Runs an upstream in front of `site` for a simulated day, while `during` runs."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(site.serve, "127.0.0.1")
        where = url or f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        spec = UpstreamSettings(name="u", prefix="u", url=where, **settings)
        upstream = Supervisor(spec, Proxy(), Events(), Metrics(), clock=loop.time)
        async with server, anyio.create_task_group() as tasks:
            tasks.start_soon(upstream.run)
            with anyio.move_on_after(seconds):
                await during(upstream)
            tasks.cancel_scope.cancel()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(run())


async def nothing(_: Supervisor) -> None:
    await anyio.sleep_forever()


@pytest.mark.parametrize("status", [401, 403, 404, 410, None])
@pytest.mark.parametrize("type", ["auto", "http", "sse"])
def test_r3_a_server_that_refuses_for_good_gets_few_requests_a_day(status: int | None, type: str) -> None:
    site = Site(status)
    simulated(site, nothing, type=type)
    assert 20 <= site.requests.total() <= 60, site.requests


def test_r3_a_server_that_fails_is_tried_at_most_every_half_minute() -> None:
    site = Site(500)
    attempts: list[float] = []

    async def watch(upstream: Supervisor) -> None:
        while True:
            due = upstream.status.next_attempt
            if due is not None and due not in attempts:
                attempts.append(due)
            await anyio.sleep(5)

    simulated(site, watch, seconds=HOUR)
    assert all(later - earlier >= 30 for earlier, later in pairwise(attempts[10:]))
    assert 60 <= len(attempts) <= 130


def test_r3_lists_cause_no_attempt_at_a_server_that_refuses() -> None:
    alone, crowded = Site(404), Site(404)
    simulated(alone, nothing, seconds=HOUR)

    async def list_every_five_seconds(upstream: Supervisor) -> None:
        caller = Caller(ANONYMOUS, LATEST)
        while True:
            await upstream(internal_call(LinkKey("u", None), "tools/list", {}, owner=caller, hurries=False))
            await anyio.sleep(5)

    simulated(crowded, list_every_five_seconds, seconds=HOUR)
    assert crowded.requests.total() <= alone.requests.total() + 3  # chance may move an attempt into the hour


@pytest.mark.parametrize("how", ["a call", "retry", "restart"])
def test_r3_a_call_or_an_order_tries_a_server_that_refused_at_once(how: str) -> None:
    site = Site(404)
    states: list[LinkState] = []

    async def come_back(upstream: Supervisor) -> None:
        await anyio.sleep(DAY / 2)
        due = upstream.status.next_attempt
        assert due is not None
        assert "404" in failure(await upstream(tool("a"))).error.message
        site.status = 200
        if how == "a call":
            assert value(await upstream(tool("a"))) == "back"
        else:
            getattr(upstream, how)()
            await anyio.sleep(5)
        states.append(upstream.status.state)

    simulated(site, come_back)
    assert states == [LinkState.READY]


@pytest.mark.parametrize("type", ["auto", "http"])
def test_r3_a_server_that_comes_back_is_found_within_hours(type: str) -> None:
    site = Site(404)
    waited: list[float] = []

    async def come_back(upstream: Supervisor) -> None:
        await anyio.sleep(DAY / 2)
        site.status, began = 200, asyncio.get_running_loop().time()
        while upstream.status.state is not LinkState.READY:  # noqa: ASYNC110  # the clock jumps
            await anyio.sleep(60)
        waited.append(asyncio.get_running_loop().time() - began)

    simulated(site, come_back, type=type)
    assert waited[0] <= 4100
