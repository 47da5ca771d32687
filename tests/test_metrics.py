"""The instruments as a whole."""

from __future__ import annotations

from mcproxy.metrics import Metrics


def test_r52_the_series_of_a_removed_upstream_go_and_others_stay() -> None:
    metrics = Metrics()
    for upstream in ("gone", "kept"):
        metrics.upstream_up.labels(upstream).set(1)
        metrics.requests.labels(upstream, "tools/call", "echo", "ok").inc()
        metrics.duration.labels(upstream, "tools/call").observe(1)
    metrics.sessions.labels("stdio").set(1)
    metrics.forget("gone")
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    assert {sample.labels["upstream"] for sample in samples if "upstream" in sample.labels} == {"kept"}
    assert metrics.registry.get_sample_value("mcproxy_sessions", {"transport": "stdio"}) == 1
