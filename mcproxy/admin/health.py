"""Liveness, readiness and metrics: what both listeners answer at `/healthz`, `/readyz` and `/metrics` (R51).

Whoever asks learns whether the gateway is ready. Only operators learn why it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from prometheus_client.exposition import choose_encoder

from mcproxy.telemetry.metrics import Metrics


class HealthReport(msgspec.Struct, frozen=True):
    """A response: status, type, body, and further headers (`fields`)."""

    status: int
    content_type: str
    body: bytes
    fields: Mapping[str, str]
    """Further headers."""
    details: bytes | None = None
    """The body for operators, if they learn more than others."""


Reports = Mapping[str, Callable[[str], HealthReport]]
"""The response to a GET by path; the argument is the `Accept` header."""

_NEVER_STORED: Final = {"Cache-Control": "no-store"}


def health_reports(
    metrics: Metrics, unready: Callable[[], Iterable[str]], *, metrics_path: str = "/metrics"
) -> Reports:
    """The reports by path. `unready` yields reasons for no traffic, a line each: missing upstreams, or the shutdown."""

    def healthz(_accept: str) -> HealthReport:
        return _plain("ok\n")

    def readyz(_accept: str) -> HealthReport:
        reasons = list(unready())
        if not reasons:
            return _plain("ok\n")
        return _plain("not ready\n", status=503, details="".join(f"{reason}\n" for reason in reasons))

    def exposition(accept: str) -> HealthReport:
        # The text format of Prometheus, or OpenMetrics if Accept asks for it.
        encode, content_type = choose_encoder(accept)
        return HealthReport(200, content_type, encode(metrics.registry), _NEVER_STORED)

    return {"/healthz": healthz, "/readyz": readyz, metrics_path: exposition}


def _plain(text: str, status: int = 200, details: str | None = None) -> HealthReport:
    encoded = None if details is None else details.encode()
    return HealthReport(status, "text/plain; charset=utf-8", text.encode(), _NEVER_STORED, encoded)
