"""Calls, failures, durations and reconnects per upstream, of the last five minutes and of the last hour by minutes.

From the Prometheus metrics. What is kept is bounded by the upstreams of the configuration.
"""

from __future__ import annotations

import time
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

MINUTES: Final = 60
"""Minutes that are kept of each upstream, the present one among them."""

FLEET: Final = ""
"""Stands for all upstreams together, none of which has this name."""

FAILURES: Final = frozenset({"unavailable", "timeout", "protocol_error"})
"""Outcomes that are neither the caller's fault nor a tool's own error."""


@dataclass(frozen=True, slots=True)
class CallCounts:
    """The counters of one upstream at one moment, since the start."""

    calls: float = 0
    failures: float = 0
    buckets: Mapping[float, float] = field(default_factory=dict)
    """Cumulative number of calls by upper bound of their duration, in seconds."""
    reconnects: float = 0

    def since(self, before: CallCounts) -> CallCounts:
        """The counts since `before`; all of them, where the counters began anew with the upstream."""
        if self.calls < before.calls or self.reconnects < before.reconnects:
            return self
        buckets = {bound: count - before.buckets.get(bound, 0) for bound, count in self.buckets.items()}
        return CallCounts(
            self.calls - before.calls, self.failures - before.failures, buckets, self.reconnects - before.reconnects
        )

    def plus(self, other: CallCounts) -> CallCounts:
        """Both together. The bounds of their durations are the same, where they have any."""
        bounds = {*self.buckets, *other.buckets}
        return CallCounts(
            self.calls + other.calls,
            self.failures + other.failures,
            {bound: self.buckets.get(bound, 0) + other.buckets.get(bound, 0) for bound in bounds},
            self.reconnects + other.reconnects,
        )

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


@dataclass(frozen=True, slots=True)
class Minute:
    """The calls of one minute. `number` tells minutes apart and grows by one; durations are in seconds.

    `p50` and `p99` are None without calls.
    """

    number: int
    calls: float = 0
    failures: float = 0
    p50: float | None = None
    p99: float | None = None
    reconnects: float = 0


class CallStatistics:
    """Samples of the last WINDOW seconds, so that the page shows the present and not the past week.

    Of the last hour it keeps a ring of minutes for each upstream, and one for all together. `clock` gives seconds that
    never go back.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._number = self._present()
        self._at_start: dict[str, CallCounts] = {}
        """The counts when the present minute began."""
        self._minutes: dict[str, deque[Minute]] = {}
        self._samples: deque[dict[str, CallCounts]] = deque(maxlen=int(WINDOW / PERIOD))

    async def run(self, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        """Takes a sample every PERIOD until cancelled."""
        while True:
            self.sample()
            await sleep(PERIOD)

    def sample(self) -> None:
        """Takes one sample, and ends the minute if it is over. Forgets upstreams that have no metrics any more."""
        total = self.total()
        self._samples.append(total)
        self._minutes = {name: ring for name, ring in self._minutes.items() if name in total or name == FLEET}
        self._at_start = {name: counts for name, counts in self._at_start.items() if name in total}
        if self._present() > self._number:
            for name, minute in self._running(total).items():
                self._minutes.setdefault(name, deque(maxlen=MINUTES - 1)).append(minute)
            self._number, self._at_start = self._present(), total

    def minutes(self) -> dict[str, list[Minute]]:
        """The last hour by upstream and for FLEET, oldest minute first; the last one is still running."""
        return {
            name: [*(past for past in self._minutes.get(name, ()) if past.number > self._number - MINUTES), minute]
            for name, minute in self._running(self.total()).items()
        }

    def _running(self, total: Mapping[str, CallCounts]) -> dict[str, Minute]:
        counts = {name: count.since(self._at_start.get(name, CallCounts())) for name, count in total.items()}
        fleet = CallCounts()
        for count in counts.values():
            fleet = fleet.plus(count)
        return {name: self._minute(count) for name, count in {**counts, FLEET: fleet}.items()}

    def _minute(self, counts: CallCounts) -> Minute:
        p50, p99 = counts.quantile(0.5), counts.quantile(0.99)
        return Minute(self._number, counts.calls, counts.failures, p50, p99, counts.reconnects)

    def _present(self) -> int:
        return int(self._clock() // 60)

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
        reconnects = self.by(self._metrics.reconnects, "upstream")
        return {
            name: CallCounts(calls.get(name, 0), failures.get(name, 0), buckets.get(name, {}), reconnects.get(name, 0))
            for name in {**reconnects, **calls}
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
        """As `gauge`, for each value of one more `label`."""
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
