"""Links to servers on the official SDK, over each transport of the handshake era."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcproxy.call.calls import Complete, Outcome
from mcproxy.protocol.jsonrpc import raw
from mcproxy.settings import UpstreamSettings, UpstreamTimeouts
from tests.ports import free_port
from tests.timeouts import GUARD
from tests.upstream.support import FakeClient, Running, answering, decoded, running, tool

pytestmark = pytest.mark.anyio

SDK = Path(__file__).parent.parent / "fakes" / "servers" / "sdk.py"
PATIENT = UpstreamTimeouts(connect=GUARD, idle=GUARD, shutdown=1)


@asynccontextmanager
async def connected(transport: str) -> AsyncIterator[Running]:
    if transport == "stdio":
        spec = UpstreamSettings(
            name="sdk", prefix="s", command=sys.executable, args=(str(SDK), "stdio"), timeouts=PATIENT, era="legacy"
        )
        async with running(spec) as it:
            yield it
        return
    port = free_port()
    async with await anyio.open_process([sys.executable, str(SDK), transport, str(port)], stdout=None) as server:
        await accepting(port)
        url = f"http://127.0.0.1:{port}/{'mcp' if transport == 'http' else 'sse'}"
        try:
            async with running(UpstreamSettings(name="sdk", prefix="s", url=url, timeouts=PATIENT, era="legacy")) as it:
                yield it
        finally:
            with suppress(ProcessLookupError):
                server.kill()


async def accepting(port: int) -> None:
    with anyio.fail_after(GUARD):
        while True:
            try:
                await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
            except OSError:
                await anyio.lowlevel.checkpoint()
            else:
                return


def text(outcome: Outcome) -> Any:
    assert isinstance(outcome, Complete), outcome
    return decoded(raw(outcome.result))["content"][0]["text"]


@pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
async def test_calls_progress_and_questions_work(transport: str) -> None:
    counting = FakeClient()
    elicited = answering({"action": "accept", "content": {"name": "Ann"}})
    async with connected(transport) as it:
        assert text(await it.upstream(tool("add", {"a": 1, "b": 2}))) == "3"
        assert text(await it.upstream(tool("count", client=counting))) == "counted"
        assert text(await it.upstream(tool("greet", client=elicited))) == "hello Ann"
    assert [params["progress"] for _, params in counting.told] == [0, 1, 2]
    assert [question.method for question in elicited.questions] == ["elicitation/create"]
