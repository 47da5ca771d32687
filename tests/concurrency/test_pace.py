"""The twin of `mcproxy.concurrency.pace`."""

from __future__ import annotations

from mcproxy.concurrency.pace import Pace


def test_the_first_work_on_a_key_may_begin_at_once() -> None:
    assert Pace[str](1, 8).wait("a", 0) == 0


def test_work_that_follows_on_work_begins_ever_later_up_to_the_longest_pause() -> None:
    pace, now, waits = Pace[str](1, 3), 100.0, list[float]()
    for _ in range(4):
        pace.begin("a", now)
        waits.append(pace.wait("a", now))
        now += waits[-1]
        assert pace.wait("a", now) == 0
    assert waits == [1, 2, 3, 3]


def test_after_a_calm_work_begins_as_if_it_were_the_first() -> None:
    pace = Pace[str](1, 8)
    pace.begin("a", 0)
    pace.begin("a", 1)
    assert pace.wait("a", 1) == 2
    pace.begin("a", 5)
    assert pace.wait("a", 5) == 1


def test_each_key_has_a_pace_of_its_own_and_is_forgotten() -> None:
    pace = Pace[str](1, 8)
    pace.begin("a", 0)
    assert pace.wait("b", 0) == 0
    pace.forget("a")
    assert pace.wait("a", 0) == 0
