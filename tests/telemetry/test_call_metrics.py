"""The twin of `mcproxy.telemetry.call_metrics`, in all instruments."""

from __future__ import annotations

from prometheus_client.exposition import choose_encoder

from mcproxy.telemetry.call_metrics import OTHER
from mcproxy.telemetry.metrics import Metrics


def subjects(metrics: Metrics) -> set[str]:
    samples = [sample for family in metrics.requests.collect() for sample in family.samples]
    return {sample.labels["subject"] for sample in samples}


def test_r52_ten_thousand_tools_make_no_more_series_than_may_be() -> None:
    metrics = Metrics()
    metrics.calls.subjects.most = 100
    for number in range(10_000):
        metrics.calls.account("many", "tools/call", f"tool-{number}").count("ok", 0.1)
    metrics.calls.account("few", "tools/call", "its-own").count("ok", 0.1)
    metrics.calls.account("many", "resources/read", "").count("ok", 0.1)
    assert subjects(metrics) == {"", *(f"tool-{number}" for number in range(100)), OTHER, "its-own"}
    labels = {"upstream": "many", "method": "tools/call", "subject": OTHER, "outcome": "ok"}
    assert metrics.registry.get_sample_value("mcproxy_requests_total", labels) == 9_900


def test_r52_a_subject_has_series_of_its_own_as_soon_as_there_may_be_more() -> None:
    metrics = Metrics()
    metrics.calls.subjects.most = 1
    for subject in ("push", "pull"):
        metrics.calls.account("git", "tools/call", subject).count("ok", 0.1)
    assert subjects(metrics) == {"push", OTHER}
    metrics.calls.subjects.most = 2
    metrics.calls.account("git", "tools/call", "pull").count("ok", 0.1)
    assert subjects(metrics) == {"push", OTHER, "pull"}


def test_r52_an_upstream_that_returns_is_counted_anew() -> None:
    metrics = Metrics()
    metrics.calls.subjects.most = 1
    metrics.calls.account("git", "tools/call", "push").count("ok", 0.2, own=0.1)
    metrics.upstream_duration.labels("git", "tools/call").observe(0.1)
    metrics.forget("git")
    assert subjects(metrics) == set()
    metrics.calls.account("git", "tools/call", "pull").count("ok", 0.1)
    assert subjects(metrics) == {"pull"}
    assert metrics.registry.get_sample_value("mcproxy_own_duration_seconds_count", {"upstream": "git"}) is None


def test_the_times_of_calls_have_an_example_where_there_is_a_trace() -> None:
    metrics = Metrics()
    metrics.calls.account("git", "tools/call", "push").count("ok", 0.3, trace="0af7651916cd43dd8448eb211c80319c")
    metrics.calls.account("git", "tools/call", "push").count("ok", 20)
    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
    (with_example,) = [line for line in encode(metrics.registry).decode().splitlines() if " # " in line]
    assert with_example.startswith('mcproxy_request_duration_seconds_bucket{le="0.5",')
    assert '# {trace_id="0af7651916cd43dd8448eb211c80319c"} 0.3' in with_example


def test_r52_the_sizes_of_results_are_those_of_known_tools_and_go_with_their_upstream() -> None:
    metrics = Metrics()
    metrics.calls.subjects.most = 1
    for subject, size in (("echo", 100), ("echo", 5000), ("another", 7)):
        metrics.calls.account("git", "tools/call", subject).count("ok", 1.0, size=size)
    sums = {
        subject: metrics.registry.get_sample_value("mcproxy_result_bytes_sum", {"upstream": "git", "subject": subject})
        for subject in ("echo", OTHER)
    }
    assert sums == {"echo": 5100, OTHER: 7}
    metrics.forget("git")
    assert metrics.registry.get_sample_value("mcproxy_result_bytes_sum", {"upstream": "git", "subject": "echo"}) is None
