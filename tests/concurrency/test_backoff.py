"""How long to wait before the next attempt."""

from __future__ import annotations

from mcproxy.concurrency.backoff import FIRST, LONGEST, delay


def test_r3_delays_double_with_jitter_up_to_a_minute() -> None:
    assert [delay(failures, lambda: 1.0) for failures in range(3)] == [FIRST, 2 * FIRST, 4 * FIRST]
    assert delay(2, lambda: 0.0) == 2 * FIRST
    assert delay(10_000, lambda: 1.0) == LONGEST == 60
