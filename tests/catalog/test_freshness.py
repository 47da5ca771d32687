"""The twin of `mcproxy.catalog.freshness`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.catalog.freshness import DOUBTFUL, NOT_LISTED, Freshness, hints_of, stated
from mcproxy.protocol.caching import UNSAID, Hints

FIVE = stated(Hints(5.0, public=True), asked=100.0)


def test_time_runs_from_when_the_list_was_asked_for() -> None:
    assert (FIVE.left(100), FIVE.left(104), FIVE.left(105), FIVE.left(200)) == (5, 1, 0, 0)
    assert (FIVE.over(104.9), FIVE.over(105)) == (False, True)


def test_what_says_nothing_is_good_for_no_time_and_never_over() -> None:
    silent = stated(UNSAID, asked=100.0)
    assert (silent.left(100), silent.over(1e9), silent.public) == (0, False, False)


def test_r36_the_least_of_the_parts_counts() -> None:
    ten = stated(Hints(10.0, public=True), asked=100.0)
    assert hints_of([FIVE, ten], 101) == Hints(4.0, public=True)


def test_r36_one_private_part_makes_the_whole_private() -> None:
    private = stated(Hints(10.0), asked=100.0)
    assert hints_of([FIVE, private], 101) == Hints(4.0)


def test_what_may_come_at_any_moment_leaves_no_time_and_hides_nothing() -> None:
    assert hints_of([FIVE, NOT_LISTED], 101) == Hints(0.0, public=True)


def test_what_is_in_doubt_is_private_and_of_no_time() -> None:
    assert hints_of([FIVE, DOUBTFUL], 101) == hints_of([], 101) == Hints(0.0)


ANY = st.builds(Freshness, st.floats(0, 100), st.none() | st.floats(0, 1e6), st.booleans())


@given(st.lists(ANY), st.floats(0, 1e6))
def test_no_part_is_outlived(parts: list[Freshness], now: float) -> None:
    ttl = hints_of(parts, now).ttl
    assert ttl is not None
    assert ttl >= 0
    assert all(ttl <= part.left(now) for part in parts)
