"""One timer for many waits: who is told that it has waited, when, and who is not."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio
import pytest

from mcproxy.concurrency.deadlines import Deadlines

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

    def waited(self) -> None:
        self.waits.append(now() - self.began)
        self.late.set()


async def test_each_is_told_once_and_not_too_soon() -> None:
    patience, first, second = Deadlines(lambda: SECONDS), Answer(), Answer()
    patience.begin(first)
    with anyio.fail_after(5):
        patience.begin(second)
        await second.late.wait()
        last = Answer()
        patience.begin(last)
        await last.late.wait()
    for answer in (first, second, last):
        assert len(answer.waits) == 1
        assert answer.waits[0] >= SECONDS - SLACK
    assert len(patience) == 0


async def test_who_is_over_is_told_nothing_and_is_not_kept() -> None:
    patience, over, late = Deadlines(lambda: SECONDS), Answer(), Answer()
    patience.begin(over)
    patience.begin(late)
    patience.end(over)
    patience.end(over)
    assert len(patience) == 1
    with anyio.fail_after(5):
        await late.late.wait()
    assert over.waits == []


async def test_who_is_told_may_end_others_and_begin_again() -> None:
    patience, other, again = Deadlines(lambda: SECONDS), Answer(), Answer()

    @dataclass(eq=False)
    class Ending:
        def waited(self) -> None:
            patience.end(other)
            patience.begin(again)

    patience.begin(Ending())
    patience.begin(other)
    with anyio.fail_after(5):
        await again.late.wait()
    assert other.waits == []


async def test_one_that_fails_takes_nothing_from_the_others() -> None:
    @dataclass(eq=False)
    class Failing:
        def waited(self) -> None:
            raise ZeroDivisionError

    failures: list[object] = []
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    try:
        patience, answer = Deadlines(lambda: SECONDS), Answer()
        patience.begin(Failing())
        patience.begin(answer)
        with anyio.fail_after(5):
            await answer.late.wait()
    finally:
        loop.set_exception_handler(handler)
    assert [type(failure) for failure in failures] == [ZeroDivisionError]


async def test_a_reload_that_shortens_the_wait_holds_for_who_waits_as_soon_as_another_comes() -> None:
    seconds = [60.0]
    patience, over, before, after = Deadlines(lambda: seconds[0]), Answer(), Answer(), Answer()
    patience.begin(over)
    patience.end(over)
    patience.begin(before)
    seconds[0] = SECONDS
    patience.begin(after)
    with anyio.fail_after(5):
        await before.late.wait()
        await after.late.wait()
    assert over.waits == []


async def test_an_alarm_that_stands_holds_nothing_of_the_call_that_it_was_set_in() -> None:
    patience, over, about = Deadlines(lambda: 60), Answer(), Answer()
    token = CALL.set(about)
    patience.begin(over)
    CALL.reset(token)
    patience.end(over)
    held = weakref.ref(about)
    del about, token
    gc.collect()
    assert held() is None
