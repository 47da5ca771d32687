"""The twin of `mcproxy.features.limits.reservations`; what replicas do with them is in `tests.cluster.test_ledger`."""

from __future__ import annotations

import math

import pytest

from mcproxy.features.limits.reservations import RETRY, Measure, Reservation


def reservation(measure: Measure, limit: int, *, exact: bool = False) -> Reservation:
    made = Reservation(("rule",), measure, "r:1")
    made.set_limit(limit, 1.0, exact=exact)
    return made


def begun(it: Reservation, limit: int, now: float = 0, calls: int = 1000) -> int:
    """How many of so many calls may begin."""
    before = it.used
    for _ in range(calls):
        if it.has_room(limit, now):
            it.used += 1
    return it.used - before


@pytest.mark.parametrize(("limit", "chunk"), [(1, 1), (100, 1), (101, 2), (1000, 10)])
def test_a_chunk_is_a_hundredth_of_the_limit_and_at_least_one(limit: int, chunk: int) -> None:
    assert reservation(Measure.DAILY, limit).chunk == chunk
    assert reservation(Measure.DAILY, limit, exact=True).chunk == 0


@pytest.mark.parametrize("measure", list(Measure))
def test_one_chunk_may_be_used_before_any_is_reserved_and_one_beyond_what_is(measure: Measure) -> None:
    it = reservation(measure, 1000)
    assert begun(it, 1000) == 10
    it.settle(granted=25, asked=25, others=0, wait=0, now=0)
    assert begun(it, 1000) == 15 + 10


@pytest.mark.parametrize("measure", list(Measure))
def test_of_an_exact_limit_nothing_may_be_used_that_is_not_reserved(measure: Measure) -> None:
    it = reservation(measure, 1000, exact=True)
    assert begun(it, 1000) == 0
    it.settle(granted=1, asked=1, others=0, wait=0, now=0)
    assert begun(it, 1000) == 1


def test_a_daily_count_of_which_nothing_is_left_stays_closed_that_day() -> None:
    it = reservation(Measure.DAILY, 1000)
    begun(it, 1000)
    it.settle(granted=10, asked=20, others=995, wait=math.inf, now=5)
    assert begun(it, 1000, now=80_000) == 0


def test_a_bucket_that_was_empty_may_be_used_again_once_it_has_a_call() -> None:
    it = reservation(Measure.RATE, 1000)
    begun(it, 1000)
    it.settle(granted=10, asked=20, others=0, wait=0.5, now=5)
    assert not it.is_open(1000, 5.4)
    assert begun(it, 1000, now=5.4) == 0
    assert it.is_open(1000, 5.5)
    assert begun(it, 1000, now=5.5) == 10


def test_of_calls_at_once_no_more_than_a_chunk_runs_beyond_what_is_reserved_however_long_it_takes() -> None:
    it = reservation(Measure.AT_ONCE, 1000)
    begun(it, 1000)
    for moment in range(0, 100, 2):
        it.settle(granted=it.used, asked=it.used + 10, others=0, wait=RETRY, now=moment)
        assert begun(it, 1000, now=moment + 1.5) == 0
    it.used = 0
    assert begun(it, 1000, now=200) == 10


def test_calls_at_once_that_ended_are_given_back_but_for_a_chunk_while_others_run() -> None:
    it = reservation(Measure.AT_ONCE, 1000)
    it.used, it.granted = 12, 22
    assert not it.is_wanting
    it.used = 11
    assert it.is_wanting
    it.used = 0
    assert (it.is_wanting, it.wanted) == (True, 0)


def test_what_is_over_wants_no_more_than_was_used() -> None:
    it = reservation(Measure.DAILY, 1000)
    it.used, it.granted, it.is_over = 3, 13, True
    assert it.wanted == 3
    assert it.is_due(now=-1)


def test_a_caller_with_a_smaller_limit_is_judged_by_what_all_have_reserved() -> None:
    it = reservation(Measure.DAILY, 1000)
    it.settle(granted=50, asked=50, others=60, wait=0, now=0)
    assert begun(it, 100) == 40
    assert begun(it, 1000) == 10 + 10
