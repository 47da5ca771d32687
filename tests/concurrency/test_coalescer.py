"""The twin of `mcproxy.concurrency.coalescer`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.concurrency.coalescer import Coalescer
from tests.depth import examples
from tests.fakes.upstream import Gate, Sleeper, quiet
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running(
    work: Callable[[str], Awaitable[None]], sleeper: Sleeper | None = None
) -> AsyncIterator[Coalescer[str]]:
    coalescer = Coalescer(work, sleeper or Sleeper())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(coalescer.run)
        yield coalescer
        tasks.cancel_scope.cancel()


class Work:
    """Notes each run and the state that it saw, and waits at a gate."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.state = 0
        self.saw: list[tuple[str, int]] = []

    async def __call__(self, key: str) -> None:
        self.saw.append((key, self.state))
        await self.gate.passed()


async def test_r19_a_storm_during_a_run_makes_one_more_run_that_sees_the_last_state() -> None:
    work = Work()
    work.gate.shut()
    async with running(work) as coalescer:
        coalescer.want("a")
        await work.gate.holds(1)
        for state in range(1, 201):
            work.state = state
            coalescer.want("a")
        work.gate.open()
        with anyio.fail_after(GUARD):
            await coalescer.done("a")
    assert work.saw == [("a", 0), ("a", 200)]


async def test_r47_one_key_does_not_wait_for_another() -> None:
    work = Work()
    work.gate.shut()
    async with running(work) as coalescer:
        coalescer.want("a")
        coalescer.want("b")
        await work.gate.holds(2)


async def test_what_was_wanted_before_it_runs_is_done_once_it_does() -> None:
    work = Work()
    coalescer = Coalescer(work)
    coalescer.want("a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(coalescer.run)
        with anyio.fail_after(GUARD):
            await coalescer.done("a")
        tasks.cancel_scope.cancel()
    assert work.saw == [("a", 0)]


async def test_what_is_wanted_later_waits_for_its_time() -> None:
    work, sleeper = Work(), Sleeper()
    async with running(work, sleeper) as coalescer:
        coalescer.want_after("a", 7)
        await sleeper.slept(1)
        assert (work.saw, sleeper.asked, coalescer.busy("a")) == ([], [7], False)
        sleeper.wake()
        await quiet()
        assert work.saw == [("a", 0)]


async def test_a_wish_in_the_meantime_takes_the_place_of_the_later_one() -> None:
    work, sleeper = Work(), Sleeper()
    async with running(work, sleeper) as coalescer:
        coalescer.want_after("a", 7)
        await sleeper.slept(1)
        coalescer.want("a")
        with anyio.fail_after(GUARD):
            await coalescer.done("a")
        sleeper.wake()
        await quiet()
    assert work.saw == [("a", 0)]


async def test_what_is_forgotten_is_not_done() -> None:
    work, sleeper = Work(), Sleeper()
    async with running(work, sleeper) as coalescer:
        coalescer.want_after("a", 7)
        coalescer.want("b")
        coalescer.forget("a")
        coalescer.forget("b")
        sleeper.wake()
        await quiet()
    assert work.saw == []


@settings(max_examples=examples(50))
@given(st.lists(st.sampled_from(["a", "b", "turn"]), max_size=40))
def test_r19_the_last_wish_is_always_served(steps: list[str]) -> None:
    async def scenario() -> None:
        version = {"a": 0, "b": 0}
        served = {"a": 0, "b": 0}

        async def work(key: str) -> None:
            seen = version[key]
            await anyio.lowlevel.checkpoint()
            served[key] = seen

        async with running(work) as coalescer:
            for step in steps:
                if step == "turn":
                    await anyio.lowlevel.checkpoint()
                else:
                    version[step] += 1
                    coalescer.want(step)
            with anyio.fail_after(GUARD):
                await coalescer.done("a")
                await coalescer.done("b")
        assert served == version

    anyio.run(scenario)
