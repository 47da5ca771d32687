"""Keep-alive comments: which streams get them, and when; no timer runs without a stream."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio
import pytest

from mcproxy.downstream.io.keep_alive import BATCH, KeepAlive
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

CALL: ContextVar[object] = ContextVar("CALL")
INTERVAL = 0.02


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(eq=False)
class Stream:
    written: float = field(default_factory=now)
    silences: list[float] = field(default_factory=list)
    """Seconds before each keep-alive."""
    heard: anyio.Event = field(default_factory=anyio.Event)

    def keep_alive(self) -> None:
        self.silences.append(now() - self.written)
        self.written = now()
        if len(self.silences) == 3:
            self.heard.set()


async def test_an_idle_stream_gets_keep_alives_again_and_again_and_none_too_soon() -> None:
    alive, stream = KeepAlive(lambda: INTERVAL), Stream()
    alive.add(stream)
    with anyio.fail_after(GUARD):
        await stream.heard.wait()
    alive.discard(stream)
    assert min(stream.silences) >= INTERVAL / 2


async def test_a_stream_that_is_written_to_gets_no_keep_alive_while_an_idle_one_does() -> None:
    alive, silent, busy = KeepAlive(lambda: INTERVAL), Stream(), Stream(written=float("inf"))
    alive.add(silent)
    alive.add(busy)
    with anyio.fail_after(GUARD):
        await silent.heard.wait()
    assert busy.silences == []
    alive.discard(silent)
    alive.discard(busy)


async def test_a_stream_that_ended_gets_no_keep_alive() -> None:
    alive, ended, other = KeepAlive(lambda: INTERVAL), Stream(), Stream()
    alive.add(ended)
    alive.discard(ended)
    alive.add(other)
    with anyio.fail_after(GUARD):
        await other.heard.wait()
    alive.discard(other)
    assert ended.silences == []


@dataclass(eq=False)
class Member:
    """One of many streams that are due at the same time."""

    told: Callable[[], None]
    written: float = 0

    def keep_alive(self) -> None:
        self.written = float("inf")
        self.told()


async def test_the_loop_turns_between_batches_of_keep_alives() -> None:
    order: list[str] = []
    alive, over = KeepAlive(lambda: INTERVAL), anyio.Event()

    def told() -> None:
        if not order:
            asyncio.get_running_loop().call_soon(order.append, "another")
        order.append("keep-alive")
        if order.count("keep-alive") == 2 * BATCH:
            over.set()

    streams = [Member(told) for _ in range(2 * BATCH)]
    for member in streams:
        alive.add(member)
    with anyio.fail_after(GUARD):
        await over.wait()
    for member in streams:
        alive.discard(member)
    assert order == ["keep-alive"] * BATCH + ["another"] + ["keep-alive"] * BATCH


async def test_a_stream_that_ends_before_its_batch_gets_no_keep_alive() -> None:
    written: list[str] = []
    alive, last = KeepAlive(lambda: INTERVAL), Stream()

    def told() -> None:
        written.append("keep-alive")
        for member in streams:
            alive.discard(member)

    streams = [Member(told) for _ in range(2 * BATCH)]
    for member in streams:
        alive.add(member)
    alive.add(last)
    with anyio.fail_after(GUARD):
        await last.heard.wait()
    alive.discard(last)
    assert written == ["keep-alive"]


async def test_the_timer_keeps_nothing_of_the_context_of_the_first_stream() -> None:
    alive, stream, call = KeepAlive(lambda: INTERVAL), Stream(), Stream()
    token = CALL.set(call)
    alive.add(stream)
    CALL.reset(token)
    held = weakref.ref(call)
    del call, token
    with anyio.fail_after(GUARD):
        await stream.heard.wait()
    gc.collect()
    assert held() is None
    alive.discard(stream)
