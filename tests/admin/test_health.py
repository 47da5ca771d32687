"""The operator's reports."""

from __future__ import annotations

from mcproxy.admin.health import HealthReport, health_reports
from mcproxy.telemetry.metrics import Metrics


def asked(path: str, missing: list[str], accept: str = "", metrics: Metrics | None = None) -> HealthReport:
    return health_reports(metrics or Metrics(), lambda: missing)[path](accept)


def test_r51_the_process_is_healthy_whatever_its_upstreams_do() -> None:
    told = asked("/healthz", ["waiting for git"])
    assert (told.status, told.body) == (200, b"ok\n")


def test_r51_ready_is_when_every_required_upstream_is() -> None:
    told = asked("/readyz", ["waiting for git", "waiting for time"])
    assert (told.status, told.details) == (503, b"waiting for git\nwaiting for time\n")
    assert told.body == b"not ready\n", "what others learn names nothing"
    told = asked("/readyz", [])
    assert (told.status, told.body, told.details) == (200, b"ok\n", None)


def test_metrics_are_in_the_format_that_the_scraper_asks_for() -> None:
    metrics = Metrics()
    metrics.upstream_up.labels("git").set(1)
    told = asked("/metrics", [], metrics=metrics)
    assert told.content_type.startswith("text/plain")
    assert b'mcproxy_upstream_up{upstream="git"} 1.0' in told.body
    told = asked("/metrics", [], "application/openmetrics-text; version=1.0.0", metrics)
    assert told.content_type.startswith("application/openmetrics-text")
    assert told.body.endswith(b"# EOF\n")
