"""What the metrics say of each upstream of late."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from prometheus_client import CollectorRegistry

from mcproxy.admin.statistics import PERIOD, WINDOW, CallStatistics
from mcproxy.telemetry.metrics import Metrics

pytestmark = pytest.mark.anyio


def count(metrics: Metrics, outcome: str, seconds: float, times: int = 1) -> None:
    for _ in range(times):
        metrics.requests.labels("a", "tools/call", "t", outcome).inc()
        metrics.duration.labels("a", "tools/call").observe(seconds)


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
