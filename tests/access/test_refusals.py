"""The twin of `mcproxy.access.refusals`."""

from __future__ import annotations

import json

import structlog.testing

from mcproxy.access.audit.record_lines import REFUSED, Lines
from mcproxy.access.refusals import RefusalReason, Refusals, RefusedCredentials
from mcproxy.telemetry.metrics import Metrics


class World:
    """Refusals at a time that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        self.records: list[RefusedCredentials] = []
        self.refusals = Refusals(self.metrics, self.records.append, lambda: self.now, lambda: 1_800_000_000.5)

    def refuse(self, reason: RefusalReason = RefusalReason.UNKNOWN_KEY, times: int = 1) -> None:
        for _ in range(times):
            self.refusals.count(reason, "the key is not known", "192.0.2.1")

    def counted(self, reason: RefusalReason) -> float:
        labels = {"reason": reason.value}
        return self.metrics.registry.get_sample_value("mcproxy_refused_credentials_total", labels) or 0


def test_r88_refused_credentials_are_counted_logged_and_recorded_with_the_reason() -> None:
    world = World()
    with structlog.testing.capture_logs() as logged:
        world.refuse()
    assert world.counted(RefusalReason.UNKNOWN_KEY) == 1
    assert [(line["event"], line["reason"], line["peer"]) for line in logged] == [
        ("credentials refused", "unknown_key", "192.0.2.1")
    ]
    assert [record.reason for record in world.records] == [RefusalReason.UNKNOWN_KEY]


def test_r88_a_flood_of_refusals_fills_neither_the_log_nor_the_audit_and_is_counted_whole() -> None:
    world = World()
    with structlog.testing.capture_logs() as logged:
        world.refuse(times=10_000)
        world.refuse(RefusalReason.EXPIRED)
        world.now = 1.5
        world.refuse()
    assert world.counted(RefusalReason.UNKNOWN_KEY) == 10_001
    assert [(line["reason"], line["unlogged"]) for line in logged] == [
        ("unknown_key", 0),
        ("expired", 0),
        ("unknown_key", 9_999),
    ]
    assert [(record.reason.value, record.unwritten) for record in world.records] == [
        ("unknown_key", 0),
        ("expired", 0),
        ("unknown_key", 9_999),
    ]


def test_r88_requests_without_credentials_are_counted_alone() -> None:
    world = World()
    with structlog.testing.capture_logs() as logged:
        world.refuse(RefusalReason.MISSING, times=3)
    assert world.counted(RefusalReason.MISSING) == 3
    assert (logged, world.records) == ([], [])


def test_r88_a_refusal_is_one_line_of_the_audit_without_secrets() -> None:
    refused = RefusedCredentials(1_800_000_000.5, RefusalReason.AUDIENCE, "for sentinel-secret\n{}", "192.0.2.1", 2)
    line = Lines(["sentinel-secret"]).line(refused)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "time": "2027-01-15T08:00:00.500+00:00",
        "event": REFUSED,
        "reason": "audience",
        "why": "for [redacted]\n{}",
        "peer": "192.0.2.1",
        "unwritten": 2,
    }
