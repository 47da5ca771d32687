"""Calls, failures and durations per upstream over the last five minutes, from the Prometheus metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio
from prometheus_client.registry import Collector

from mcproxy.telemetry.metrics import Metrics

WINDOW: Final = 300.0
"""Seconds over which recent calls are counted."""

PERIOD: Final = 10.0
"""Seconds between two samples."""

FAILURES: Final = frozenset({"unavailable", "timeout", "protocol_error"})
"""Outcomes that are neither the caller's fault nor a tool's own error."""


@dataclass(frozen=True, slots=True)
class CallCounts:
    """The counters of one upstream at one moment, since the start."""

    calls: float = 0
    failures: float = 0
    buckets: Mapping[float, float] = field(default_factory=dict)
    """Cumulative number of calls by upper bound of their duration, in seconds."""

    def since(self, before: CallCounts) -> CallCounts:
        buckets = {bound: count - before.buckets.get(bound, 0) for bound, count in self.buckets.items()}
        return CallCounts(self.calls - before.calls, self.failures - before.failures, buckets)

    def quantile(self, part: float) -> float | None:
        """A quantile of durations in seconds (`part`: 0 to 1), interpolated in its bucket; None without calls."""
        bounds = sorted(self.buckets)
        total = self.buckets[bounds[-1]] if bounds else 0
        if not total:
            return None
        below, floor = 0.0, 0.0
        for bound in bounds:
            count = self.buckets[bound]
            if count >= part * total:
                within = (part * total - below) / (count - below) if count > below else 1
                return floor if bound == float("inf") else floor + (bound - floor) * within
            below, floor = count, bound
        return floor


class CallStatistics:
    """Samples of the last WINDOW seconds, so that the page shows the present and not the past week."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._samples: deque[dict[str, CallCounts]] = deque(maxlen=int(WINDOW / PERIOD))

    async def run(self, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        """Takes a sample every PERIOD until cancelled."""
        while True:
            self._samples.append(self.total())
            await sleep(PERIOD)

    def total(self) -> dict[str, CallCounts]:
        """Counts by upstream, since the start."""
        calls: dict[str, float] = {}
        failures: dict[str, float] = {}
        for labels, value in _samples(self._metrics.requests, "_total"):
            upstream = labels["upstream"]
            calls[upstream] = calls.get(upstream, 0) + value
            if labels["outcome"] in FAILURES:
                failures[upstream] = failures.get(upstream, 0) + value
        buckets: dict[str, dict[float, float]] = {}
        for labels, value in _samples(self._metrics.duration, "_bucket"):
            counts = buckets.setdefault(labels["upstream"], {})
            bound = float(labels["le"])
            counts[bound] = counts.get(bound, 0) + value
        return {
            name: CallCounts(count, failures.get(name, 0), buckets.get(name, {}))
            for name, count in calls.items()
            if name
        }

    def recent(self) -> dict[str, CallCounts]:
        """Counts by upstream, over the last WINDOW."""
        before = self._samples[0] if self._samples else {}
        return {name: counts.since(before.get(name, CallCounts())) for name, counts in self.total().items()}

    def gauge(self, instrument: Collector, **wanted: str) -> float:
        """The sum of the series of an instrument that have the labels `wanted`."""
        return sum(value for labels, value in _samples(instrument, "") if wanted.items() <= labels.items())

    def by(self, instrument: Collector, label: str, **wanted: str) -> dict[str, float]:
        """These sums by the values of one more label."""
        sums: dict[str, float] = {}
        for labels, value in _samples(instrument, ""):
            if wanted.items() <= labels.items():
                sums[labels[label]] = sums.get(labels[label], 0) + value
        return sums


def _samples(instrument: Collector, suffix: str) -> Iterable[tuple[dict[str, str], float]]:
    for family in instrument.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created") and sample.name.endswith(suffix):
                yield sample.labels, sample.value
