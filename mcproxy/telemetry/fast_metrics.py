"""Counters, gauges and histograms for the hot path: plain numbers that the Prometheus registry reads when scraped.

The library's own instruments are safe to use from any thread, at the price of a lock and several calls for each number.
These belong to one thread, and cost an addition. Rare events do not need them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from prometheus_client import Metric
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import INF, floatToGoString


class Series(Protocol):
    """The numbers of one combination of labels."""

    def samples(self) -> Iterator[Sample]:
        """Samples with suffixes for their names, and without the series' labels."""


S = TypeVar("S", bound=Series)


class Tally(Generic[S]):
    """An instrument: its series by their labels. A `Collector` of prometheus_client."""

    def __init__(self, kind: str, name: str, documentation: str, labels: Sequence[str], start: Callable[[], S]) -> None:
        self._kind = kind
        self._name = name
        self._documentation = documentation
        self.labelnames = tuple(labels)
        self._start = start
        self._series: dict[tuple[str, ...], S] = {}
        self._update: Callable[[], None] = lambda: None

    def before_reading(self, update: Callable[[], None]) -> None:
        """Calls `update` before each reading, for numbers that are counted late."""
        self._update = update

    def labels(self, *values: str) -> S:
        """The series with these values; made if it does not exist."""
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = self._start()
        return found

    def forget(self, value: str) -> None:
        """Drops every series whose first label has that value."""
        self._series = {values: series for values, series in self._series.items() if values[0] != value}

    def describe(self) -> Iterable[Metric]:
        return [Metric(self._name, self._documentation, self._kind)]

    def collect(self) -> Iterable[Metric]:
        self._update()
        family = Metric(self._name, self._documentation, self._kind)
        for values, series in self._series.items():
            labels = dict(zip(self.labelnames, values, strict=True))
            for sample in series.samples():
                named = sample._replace(name=self._name + sample.name, labels={**labels, **sample.labels})
                family.samples.append(named)
        return [family]


class FastCounter:
    """One series of a counter."""

    __slots__ = ("_created", "_value")

    def __init__(self) -> None:
        self._created = time.time()
        self._value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Adds `amount`, which is not negative."""
        self._value += amount

    def samples(self) -> Iterator[Sample]:
        yield Sample("_total", {}, self._value)
        yield Sample("_created", {}, self._created)


class FastGauge:
    """One series of a gauge."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 0.0

    def inc(self) -> None:
        """Adds 1."""
        self._value += 1

    def dec(self) -> None:
        """Subtracts 1."""
        self._value -= 1

    def samples(self) -> Iterator[Sample]:
        yield Sample("", {}, self._value)


class FastHistogram:
    """One series of a histogram. `bounds` are the upper bounds of its buckets, in order, without infinity."""

    __slots__ = ("_bounds", "_counts", "_created", "_examples", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._examples: dict[int, Exemplar] = {}
        self._created = time.time()
        self._sum = 0.0

    def observe(self, value: float, trace: str | None = None) -> None:
        """Counts a value. `trace` names an example of it (OpenMetrics, Exemplars)."""
        bucket = bisect_left(self._bounds, value)
        self._counts[bucket] += 1
        self._sum += value
        if trace is not None:
            self._examples[bucket] = Exemplar({"trace_id": trace}, value, time.time())

    def samples(self) -> Iterator[Sample]:
        total = 0
        for bucket, bound in enumerate((*self._bounds, INF)):
            total += self._counts[bucket]
            le = floatToGoString(bound)  # type: ignore[no-untyped-call]  # the library has no types for it
            yield Sample("_bucket", {"le": le}, total, None, self._examples.get(bucket))
        yield Sample("_count", {}, total)
        yield Sample("_sum", {}, self._sum)
        yield Sample("_created", {}, self._created)


def counter(name: str, documentation: str, labels: Sequence[str]) -> Tally[FastCounter]:
    """A counter; `name` is without its `_total`."""
    return Tally("counter", name, documentation, labels, FastCounter)


def gauge(name: str, documentation: str, labels: Sequence[str]) -> Tally[FastGauge]:
    """A gauge."""
    return Tally("gauge", name, documentation, labels, FastGauge)


def histogram(name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float]) -> Tally[FastHistogram]:
    """A histogram; `bounds` are the upper bounds of its buckets, in order, without infinity."""
    return Tally("histogram", name, documentation, labels, partial(FastHistogram, bounds))
