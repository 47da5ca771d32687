"""The twin of `mcproxy.concurrency.turns`."""

from __future__ import annotations

import anyio
import pytest

from mcproxy.concurrency.turns import Steps, at_once, in_turns
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
