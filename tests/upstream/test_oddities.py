"""Accepted deviations of one upstream, as operators see them."""

from __future__ import annotations

from structlog.testing import capture_logs

from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.oddities import Oddities


def test_each_kind_is_logged_and_shown_once_and_always_counted() -> None:
    metrics = Metrics()
    oddities = Oddities("web", metrics)
    with capture_logs() as logged:
        for _ in range(3):
            oddities.note("content_type", "answers with text/plain; accepted")
        oddities.note("token_type", "names no token_type; taken for Bearer")
    assert [line["kind"] for line in logged] == ["content_type", "token_type"]
    assert oddities.sentences == ("answers with text/plain; accepted", "names no token_type; taken for Bearer")
    count = metrics.registry.get_sample_value
    assert count("mcproxy_upstream_oddities_total", {"upstream": "web", "kind": "content_type"}) == 3


def test_oddities_are_forgotten_with_their_upstream() -> None:
    metrics = Metrics()
    Oddities("web", metrics).note("content_type", "answers with text/plain; accepted")
    metrics.forget("web")
    labels = {"upstream": "web", "kind": "content_type"}
    assert metrics.registry.get_sample_value("mcproxy_upstream_oddities_total", labels) is None
