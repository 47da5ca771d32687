"""One timer for many deadlines: which waiters expire, when, and which do not."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio
import pytest

from mcproxy.concurrency.deadlines import Deadlines
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

CALL: ContextVar[object] = ContextVar("CALL")
SECONDS = 0.02
SLACK = 0.002
"""Loops count in milliseconds."""


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(eq=False)
class Answer:
    began: float = field(default_factory=now)
    waits: list[float] = field(default_factory=list)
    late: anyio.Event = field(default_factory=anyio.Event)

    def expired(self) -> None:
        self.waits.append(now() - self.began)
        self.late.set()


async def test_each_waiter_expires_once_and_not_too_soon() -> None:
    deadlines, first, second = Deadlines(SECONDS), Answer(), Answer()
    deadlines.add(first)
    with anyio.fail_after(GUARD):
        deadlines.add(second)
        await second.late.wait()
        last = Answer()
        deadlines.add(last)
        await last.late.wait()
    for answer in (first, second, last):
        assert len(answer.waits) == 1
        assert answer.waits[0] >= SECONDS - SLACK
    assert len(deadlines) == 0


async def test_a_discarded_waiter_does_not_expire_and_is_not_kept() -> None:
    deadlines, over, late = Deadlines(SECONDS), Answer(), Answer()
    deadlines.add(over)
    deadlines.add(late)
    deadlines.discard(over)
    deadlines.discard(over)
    assert len(deadlines) == 1
    with anyio.fail_after(GUARD):
        await late.late.wait()
    assert over.waits == []


async def test_a_waiter_that_expires_may_discard_others_and_add_new_ones() -> None:
    deadlines, other, again = Deadlines(SECONDS), Answer(), Answer()

    @dataclass(eq=False)
    class Ending:
        def expired(self) -> None:
            deadlines.discard(other)
            deadlines.add(again)

    deadlines.add(Ending())
    deadlines.add(other)
    with anyio.fail_after(GUARD):
        await again.late.wait()
    assert other.waits == []


async def test_a_waiter_that_raises_does_not_keep_the_others_from_expiring() -> None:
    @dataclass(eq=False)
    class Failing:
        def expired(self) -> None:
            raise ZeroDivisionError

    failures: list[object] = []
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    try:
        deadlines, answer = Deadlines(SECONDS), Answer()
        deadlines.add(Failing())
        deadlines.add(answer)
        with anyio.fail_after(GUARD):
            await answer.late.wait()
    finally:
        loop.set_exception_handler(handler)
    assert [type(failure) for failure in failures] == [ZeroDivisionError]


async def test_a_shorter_deadline_holds_for_pending_waiters_as_soon_as_another_is_added() -> None:
    deadlines, over, before, after = Deadlines(60), Answer(), Answer(), Answer()
    deadlines.add(over)
    deadlines.discard(over)
    deadlines.add(before)
    deadlines.seconds = SECONDS
    deadlines.add(after)
    with anyio.fail_after(GUARD):
        await before.late.wait()
        await after.late.wait()
    assert over.waits == []


async def test_the_timer_keeps_nothing_of_the_context_that_it_was_set_in() -> None:
    deadlines, over, about = Deadlines(60), Answer(), Answer()
    token = CALL.set(about)
    deadlines.add(over)
    CALL.reset(token)
    deadlines.discard(over)
    held = weakref.ref(about)
    del about, token
    gc.collect()
    assert held() is None
