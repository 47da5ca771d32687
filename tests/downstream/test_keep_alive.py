"""Signs of life: who is due for one, and that nothing runs where nobody is."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio
import pytest

from mcproxy.downstream.keep_alive import KeepAlive

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
