"""The instruments as a whole."""

from __future__ import annotations

from mcproxy.telemetry.metrics import Metrics


def test_r52_the_series_of_a_removed_upstream_go_and_others_stay() -> None:
    metrics = Metrics()
    for upstream in ("gone", "kept"):
        metrics.upstream_up.labels(upstream).set(1)
        metrics.requests.labels(upstream, "tools/call", "echo", "ok").inc()
        metrics.duration.labels(upstream, "tools/call").observe(1)
    metrics.sessions.labels("stdio", "handshake", "2025-11-25").set(1)
    metrics.forget("gone")
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    assert {sample.labels["upstream"] for sample in samples if "upstream" in sample.labels} == {"kept"}
    assert (
        metrics.registry.get_sample_value(
            "mcproxy_sessions", {"transport": "stdio", "era": "handshake", "version": "2025-11-25"}
        )
        == 1
    )


def test_what_is_counted_by_upstream_alone_starts_at_zero() -> None:
    metrics = Metrics()
    metrics.expect("git")
    assert metrics.registry.get_sample_value("mcproxy_upstream_reconnects_total", {"upstream": "git"}) == 0
    assert metrics.registry.get_sample_value("mcproxy_upstream_up", {"upstream": "git"}) == 0
    metrics.forget("git")
    assert metrics.registry.get_sample_value("mcproxy_upstream_reconnects_total", {"upstream": "git"}) is None
