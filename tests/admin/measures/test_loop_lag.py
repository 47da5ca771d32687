"""How late the event loop is."""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import anyio.lowlevel
import pytest
from prometheus_client import CollectorRegistry

from mcproxy.admin.measures.loop_lag import INTERVAL, KEPT, measure_loop_lag
from mcproxy.telemetry.metrics import Metrics

pytestmark = pytest.mark.anyio


class Loop:
    """A loop that is late by what it is told, beat by beat, and then ends."""

    def __init__(self, late: Iterable[float]) -> None:
        self.late = list(late)
        self.now = 0.0
        self.ended = anyio.CancelScope()

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if not self.late:
            self.ended.cancel()
            await anyio.lowlevel.checkpoint()
        self.now += seconds + self.late.pop(0)


async def lag_after(late: Iterable[float]) -> float | None:
    registry = CollectorRegistry()
    loop = Loop(late)
    with loop.ended:
        await measure_loop_lag(Metrics(registry), loop.sleep, loop.clock)
    return registry.get_sample_value("mcproxy_event_loop_lag_seconds")


async def test_the_latest_beat_counts() -> None:
    assert await lag_after([0.0, 0.5, 0.125]) == pytest.approx(0.5)


async def test_what_is_long_ago_counts_no_more() -> None:
    assert await lag_after([0.5, *[0.0] * KEPT]) == pytest.approx(0)


async def test_a_beat_that_comes_early_is_not_late() -> None:
    assert await lag_after([-INTERVAL / 2]) == 0


async def test_tasks_are_counted_when_scraped() -> None:
    registry = CollectorRegistry()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(measure_loop_lag, Metrics(registry))
        await anyio.wait_all_tasks_blocked()
        before = registry.get_sample_value("mcproxy_tasks")
        tasks.start_soon(anyio.sleep_forever)
        assert before is not None
        assert registry.get_sample_value("mcproxy_tasks") == before + 1
        tasks.cancel_scope.cancel()
