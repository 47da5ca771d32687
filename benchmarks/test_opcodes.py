"""The twin of `opcodes`: what is counted, and what is said of it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from benchmarks.opcodes import MEASURED, Cost, Meter, chosen, functions, lines


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def work(times: int) -> int:
    return sum(number * number for number in range(times))


def counted_of_work(loop: asyncio.AbstractEventLoop, times: int) -> Cost:
    cost = Meter(loop).cost(lambda: loop.call_soon_threadsafe(work, times))
    own = {key: count for key, count in cost.spent.items() if key[0].co_filename == __file__}
    return Cost(sum(own.values()), Counter(own), cost.entries)


def test_the_same_work_costs_the_same_and_more_of_it_costs_more() -> None:
    with loop_in_a_thread() as loop:
        first, second, more = (counted_of_work(loop, times) for times in (10, 10, 20))
    assert first.opcodes == second.opcodes > 0
    assert more.opcodes > first.opcodes


def test_a_function_stands_before_those_that_cost_less_with_how_often_it_was_entered() -> None:
    with loop_in_a_thread() as loop:
        cost = counted_of_work(loop, 10)
    first, second = functions(cost, 2)
    assert "11 times" in first
    assert first.endswith("<genexpr>")
    assert "1 times" in second
    assert next(lines(cost, 1)).endswith("return sum(number * number for number in range(times))")


def test_a_part_of_a_name_chooses_workloads() -> None:
    assert chosen([]) == list(MEASURED)
    assert [each.name for each in chosen(["guarded"])] == ["tools-call 100 B c=64, guarded"]
