"""What operators may always ask: is the process alive, may it have traffic, and the metrics (requirement R51).

Tells no more of upstreams than the names of the required ones that are missing. Served by both listeners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.exposition import choose_encoder

from mcproxy.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class HealthReport:
    status: int
    content_type: str
    body: bytes
    fields: Mapping[str, str]
    """What else is said of it in headers."""


Reports = Mapping[str, Callable[[str], HealthReport]]
"""By path: what is answered to a GET whose `Accept` header is given."""

_NEVER_STORED: Final = {"Cache-Control": "no-store"}


def reports(metrics: Metrics, unready: Callable[[], Iterable[str]], *, metrics_path: str = "/metrics") -> Reports:
    """`unready` says why there should be no traffic now, a line each: required upstreams that are missing, the end."""

    def healthz(_accept: str) -> HealthReport:
        return _plain("ok\n")

    def readyz(_accept: str) -> HealthReport:
        reasons = list(unready())
        return _plain("".join(f"{reason}\n" for reason in reasons), status=503) if reasons else _plain("ok\n")

    def exposition(accept: str) -> HealthReport:
        # The text format of Prometheus, or OpenMetrics where Accept asks for it.
        encode, content_type = choose_encoder(accept)
        return HealthReport(200, content_type, encode(metrics.registry), _NEVER_STORED)

    return {"/healthz": healthz, "/readyz": readyz, metrics_path: exposition}


def _plain(text: str, status: int = 200) -> HealthReport:
    return HealthReport(status, "text/plain; charset=utf-8", text.encode(), _NEVER_STORED)
