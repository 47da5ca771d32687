"""Signs of life: who is due for one, and that nothing runs where nobody is."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio
import pytest

from mcproxy.downstream.io.keep_alive import AT_ONCE, KeepAlive

pytestmark = pytest.mark.anyio

CALL: ContextVar[object] = ContextVar("CALL")
PATIENCE = 0.02


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(eq=False)
class Stream:
    written: float = field(default_factory=now)
    silences: list[float] = field(default_factory=list)
    """Seconds before each sign of life."""
    heard: anyio.Event = field(default_factory=anyio.Event)

    def keep_alive(self) -> None:
        self.silences.append(now() - self.written)
        self.written = now()
        if len(self.silences) == 3:
            self.heard.set()


async def test_a_silent_stream_gets_signs_of_life_again_and_again_and_none_too_soon() -> None:
    alive, stream = KeepAlive(lambda: PATIENCE), Stream()
    alive.add(stream)
    with anyio.fail_after(5):
        await stream.heard.wait()
    alive.discard(stream)
    assert min(stream.silences) >= PATIENCE / 2


async def test_a_stream_that_is_written_to_gets_none_while_a_silent_one_does() -> None:
    alive, silent, busy = KeepAlive(lambda: PATIENCE), Stream(), Stream(written=float("inf"))
    alive.add(silent)
    alive.add(busy)
    with anyio.fail_after(5):
        await silent.heard.wait()
    assert busy.silences == []
    alive.discard(silent)
    alive.discard(busy)


async def test_a_stream_that_ended_gets_none() -> None:
    alive, ended, other = KeepAlive(lambda: PATIENCE), Stream(), Stream()
    alive.add(ended)
    alive.discard(ended)
    alive.add(other)
    with anyio.fail_after(5):
        await other.heard.wait()
    alive.discard(other)
    assert ended.silences == []


@dataclass(eq=False)
class Member:
    """One of a crowd whose members are due at the same time."""

    told: Callable[[], None]
    written: float = 0

    def keep_alive(self) -> None:
        self.written = float("inf")
        self.told()


async def test_others_have_their_turn_amid_signs_of_life_to_a_crowd() -> None:
    order: list[str] = []
    alive, over = KeepAlive(lambda: PATIENCE), anyio.Event()

    def told() -> None:
        if not order:
            asyncio.get_running_loop().call_soon(order.append, "another")
        order.append("sign")
        if order.count("sign") == 2 * AT_ONCE:
            over.set()

    crowd = [Member(told) for _ in range(2 * AT_ONCE)]
    for member in crowd:
        alive.add(member)
    with anyio.fail_after(5):
        await over.wait()
    for member in crowd:
        alive.discard(member)
    assert order == ["sign"] * AT_ONCE + ["another"] + ["sign"] * AT_ONCE


async def test_who_leaves_a_crowd_before_its_turn_gets_no_sign() -> None:
    signs: list[str] = []
    alive, last = KeepAlive(lambda: PATIENCE), Stream()

    def told() -> None:
        signs.append("sign")
        for member in crowd:
            alive.discard(member)

    crowd = [Member(told) for _ in range(2 * AT_ONCE)]
    for member in crowd:
        alive.add(member)
    alive.add(last)
    with anyio.fail_after(5):
        await last.heard.wait()
    alive.discard(last)
    assert signs == ["sign"]


async def test_the_timer_of_all_holds_nothing_of_the_call_that_the_first_stream_answers() -> None:
    alive, stream, call = KeepAlive(lambda: PATIENCE), Stream(), Stream()
    token = CALL.set(call)
    alive.add(stream)
    CALL.reset(token)
    held = weakref.ref(call)
    del call, token
    with anyio.fail_after(5):
        await stream.heard.wait()
    gc.collect()
    assert held() is None
    alive.discard(stream)
