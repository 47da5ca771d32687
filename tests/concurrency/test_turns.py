"""The twin of `mcproxy.concurrency.turns`."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest

from mcproxy.concurrency.turns import Steps, Turns, at_once, in_turns
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def work(done: list[str], name: str) -> Steps[str]:
    for step in range(3):
        done.append(f"{name}{step}")
        yield
    return name


async def test_others_have_their_turn_after_each_step() -> None:
    done: list[str] = []
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            for name in "ab":
                tasks.start_soon(in_turns, work(done, name))
    assert done == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert await in_turns(work([], "a")) == "a"


async def test_work_that_is_cancelled_is_not_carried_on() -> None:
    done: list[str] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await in_turns(work(done, "a"))
    assert done == ["a0"]


def test_work_that_is_done_at_once_gives_the_same_result() -> None:
    done: list[str] = []
    assert at_once(work(done, "a")) == "a"
    assert done == ["a0", "a1", "a2"]


async def test_of_several_pieces_of_work_one_has_a_step_between_two_turns_of_others() -> None:
    done: list[str] = []
    others: list[int] = []

    async def watch() -> None:
        while True:
            others.append(len(done))
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(GUARD):
        turns = Turns()
        async with anyio.create_task_group() as watching:
            watching.start_soon(watch)
            async with anyio.create_task_group() as tasks:
                for name in "abcde":
                    tasks.start_soon(turns.take, work(done, name))
            watching.cancel_scope.cancel()
    assert sorted(done) == [f"{name}{step}" for name in "abcde" for step in range(3)]
    assert done[:5] == ["a0", "b0", "c0", "d0", "e0"]
    assert max(after - before for before, after in pairwise(others)) == 1
