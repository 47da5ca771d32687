"""Whoever scrapes cannot tell our instruments from the library's."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder

from mcproxy.telemetry.fast_metrics import counter, histogram

BOUNDS = (0.001, 0.5, 1, 10)
FORMATS = ("text/plain", "application/openmetrics-text; version=1.0.0")


def scraped(registry: CollectorRegistry, accept: str) -> str:
    """Without the moments at which series began and examples were seen."""
    encode, _ = choose_encoder(accept)
    return re.sub(r"\b1\.\d+e\+09\b|\b\d{10}\.\d+", "MOMENT", encode(registry).decode())


@pytest.mark.parametrize("accept", FORMATS)
def test_a_counter_is_scraped_as_the_librarys_is(accept: str) -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    their_counter = Counter("calls", "Of any kind.", ("upstream", "outcome"), registry=theirs)
    our_counter = counter("calls", "Of any kind.", ("upstream", "outcome"))
    ours.register(our_counter)
    for labels in (("a", "ok"), ("a", "failed"), ("b", "ok"), ("a", "ok")):
        their_counter.labels(*labels).inc()
        our_counter.labels(*labels).inc()
    their_counter.labels("a", "ok").inc(100)
    our_counter.labels("a", "ok").inc(100)
    assert scraped(ours, accept) == scraped(theirs, accept)


@pytest.mark.parametrize("accept", FORMATS)
def test_a_histogram_is_scraped_as_the_librarys_is(accept: str) -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    their_histogram = Histogram("took", "Seconds.", ("upstream",), buckets=BOUNDS, registry=theirs)
    our_histogram = histogram("took", "Seconds.", ("upstream",), BOUNDS)
    ours.register(our_histogram)
    for seconds in (0, 0.001, 0.0011, 0.5, 3, 10, 11):
        their_histogram.labels("a").observe(seconds)
        our_histogram.labels("a").observe(seconds)
    their_histogram.labels("b").observe(0.7, {"trace_id": "0af7"})
    our_histogram.labels("b").observe(0.7, "0af7")
    assert scraped(ours, accept) == scraped(theirs, accept)


def test_series_are_forgotten_by_their_first_label() -> None:
    tally = counter("calls", "Of any kind.", ("upstream", "outcome"))
    for upstream in ("gone", "kept"):
        tally.labels(upstream, "ok").inc()
    tally.forget("gone")
    (family,) = tally.collect()
    assert {sample.labels["upstream"] for sample in family.samples} == {"kept"}


def test_a_name_is_registered_once() -> None:
    registry = CollectorRegistry()
    registry.register(counter("calls", "Of any kind.", ()))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(counter("calls", "Of another kind.", ()))


def test_what_is_counted_late_is_counted_before_a_reading() -> None:
    registry = CollectorRegistry()
    late = counter("late", "Of any kind.", ())
    registry.register(late)
    late.before_reading(lambda: late.labels().inc(2))
    assert registry.get_sample_value("late_total") == 2
