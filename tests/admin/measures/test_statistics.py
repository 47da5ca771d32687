"""What the metrics say of each upstream of late."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from prometheus_client import CollectorRegistry

from mcproxy.admin.measures.statistics import FLEET, MINUTES, PERIOD, WINDOW, CallStatistics, Minute
from mcproxy.telemetry.metrics import Metrics

pytestmark = pytest.mark.anyio


def count(metrics: Metrics, outcome: str, seconds: float, times: int = 1, upstream: str = "a") -> None:
    for _ in range(times):
        metrics.requests.labels(upstream, "tools/call", "t", outcome).inc()
        metrics.duration.labels(upstream, "tools/call").observe(seconds)


async def readings(figures: CallStatistics, number: int) -> None:
    with anyio.CancelScope() as scope:
        left = number

        async def sleep(seconds: float) -> None:
            nonlocal left
            assert seconds == PERIOD
            left -= 1
            if not left:
                scope.cancel()
            await anyio.lowlevel.checkpoint()

        await figures.run(sleep)


async def test_calls_failures_and_quantiles() -> None:
    metrics = Metrics(CollectorRegistry())
    count(metrics, "ok", 0.002, 98)
    count(metrics, "tool_error", 0.002)
    count(metrics, "timeout", 7)
    reading = CallStatistics(metrics).recent()["a"]
    assert (reading.calls, reading.failures) == (100, 1)
    half, last = reading.quantile(0.5), reading.quantile(0.995)
    assert half is not None
    assert last is not None
    assert 0.001 < half < 0.0025
    assert 5 < last <= 10


async def test_what_is_long_ago_counts_no_more_but_in_the_total() -> None:
    metrics = Metrics(CollectorRegistry())
    figures = CallStatistics(metrics)
    count(metrics, "timeout", 7, 3)
    await readings(figures, int(WINDOW / PERIOD) + 1)
    count(metrics, "ok", 0.002)
    late = figures.recent()["a"]
    assert (late.calls, late.failures) == (1, 0)
    assert figures.total()["a"].calls == 4


async def test_nothing_has_no_quantile() -> None:
    metrics = Metrics(CollectorRegistry())
    assert CallStatistics(metrics).recent() == {}
    metrics.requests.labels("a", "tools/call", "t", "ok").inc()
    assert CallStatistics(metrics).recent()["a"].quantile(0.5) is None


async def test_gauges_are_summed_over_what_is_not_wanted() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.sessions.labels("http", "handshake", "2025-06-18").set(2)
    metrics.sessions.labels("sse", "handshake", "2024-11-05").set(3)
    figures = CallStatistics(metrics)
    assert figures.gauge(metrics.sessions) == 5
    assert figures.gauge(metrics.sessions, transport="sse") == 3
    assert figures.by(metrics.sessions, "transport") == {"http": 2, "sse": 3}


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def sampled(figures: CallStatistics, clock: FakeClock, seconds: float) -> None:
    """Lets time pass, with the samples that are taken in it."""
    for _ in range(int(seconds / PERIOD)):
        clock.now += PERIOD
        figures.sample()


def test_the_last_hour_is_kept_by_minutes_and_the_present_one_still_counts() -> None:
    metrics, clock = Metrics(CollectorRegistry()), FakeClock()
    figures = CallStatistics(metrics, clock)
    count(metrics, "ok", 0.002, 3)
    count(metrics, "timeout", 7)
    sampled(figures, clock, 60)
    sampled(figures, clock, 60)
    count(metrics, "ok", 0.002, 2)
    metrics.reconnects.labels("a").inc()
    first, second, present = figures.minutes()["a"]
    assert (first.number, first.calls, first.failures, first.reconnects) == (0, 4, 1, 0)
    assert first.p50 is not None
    assert first.p99 is not None
    assert first.p50 < 0.01 < 5 < first.p99
    assert second == Minute(1)
    assert (present.number, present.calls, present.failures, present.reconnects) == (2, 2, 0, 1)


def test_the_fleets_minutes_are_those_of_all_upstreams() -> None:
    metrics, clock = Metrics(CollectorRegistry()), FakeClock()
    figures = CallStatistics(metrics, clock)
    count(metrics, "ok", 0.002, 3)
    count(metrics, "timeout", 7, upstream="b")
    fleet = figures.minutes()[FLEET][-1]
    assert (fleet.calls, fleet.failures) == (4, 1)
    assert fleet.p50 is not None
    assert fleet.p99 is not None
    assert fleet.p50 < 0.01 < 5 < fleet.p99


def test_a_ring_holds_an_hour_and_no_more() -> None:
    metrics, clock = Metrics(CollectorRegistry()), FakeClock()
    figures = CallStatistics(metrics, clock)
    metrics.expect("a")
    sampled(figures, clock, 3 * 3600)
    minutes = figures.minutes()
    assert [minute.number for minute in minutes["a"]] == list(range(181 - MINUTES, 181))
    assert len(minutes[FLEET]) == MINUTES
    clock.now += 1800
    figures.sample()
    assert [minute.number for minute in figures.minutes()["a"]] == [*range(151, 181), 210], "a gap stays one"


def test_the_minutes_of_an_upstream_are_forgotten_with_it_and_the_fleets_are_not() -> None:
    metrics, clock = Metrics(CollectorRegistry()), FakeClock()
    figures = CallStatistics(metrics, clock)
    count(metrics, "ok", 0.002, 3)
    sampled(figures, clock, 60)
    metrics.forget("a")
    sampled(figures, clock, PERIOD)
    assert "a" not in figures.minutes()
    assert [minute.calls for minute in figures.minutes()[FLEET]] == [3, 0]
    count(metrics, "ok", 0.002, 2)
    assert [minute.calls for minute in figures.minutes()["a"]] == [2]
    assert figures.recent()["a"].calls == 2


def test_counters_that_began_anew_with_their_upstream_count_from_zero() -> None:
    metrics, clock = Metrics(CollectorRegistry()), FakeClock()
    figures = CallStatistics(metrics, clock)
    count(metrics, "ok", 0.002, 3)
    sampled(figures, clock, 60)
    metrics.forget("a")
    count(metrics, "ok", 0.002, 1)
    assert figures.minutes()["a"][-1].calls == 1
    assert figures.recent()["a"].calls == 1
