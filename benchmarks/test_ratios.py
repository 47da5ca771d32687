"""What rounds say of each other."""

from __future__ import annotations

from benchmarks.load import Load
from benchmarks.ratios import Ratio, Turn, added, failures, middle, ratio
from benchmarks.usage import Memory


def turn(answers: int = 100, seconds: float = 1.0, processor: float = 0.5, failed: int = 0) -> Turn:
    return Turn(Load(answers, seconds, 0.001, 0.002, failed, ""), processor, Memory(2, 1))


def test_a_ratio_is_the_median_of_the_rounds_with_its_extremes() -> None:
    assert ratio([1.0, 9.0, 4.0], [2.0, 3.0, 2.0]) == Ratio(2.0, 0.5, 3.0)


def test_rounds_in_which_the_other_cost_nothing_say_nothing() -> None:
    assert ratio([1.0, 6.0], [0.0, 3.0]) == Ratio(2.0, 2.0, 2.0)
    assert ratio([1.0], [0.0]) is None


def test_what_is_added_is_never_less_than_nothing() -> None:
    assert added([3.0, 1.0], [1.0, 2.0]) == [2.0, 0.0]


def test_a_turn_knows_its_rate_its_cost_and_its_share_of_the_core() -> None:
    taken = turn(answers=200, seconds=2.0, processor=0.5)
    assert (taken.rate, taken.cost, taken.busy) == (100.0, 0.0025, 0.25)


def test_a_turn_without_an_answer_has_no_cost() -> None:
    assert turn(answers=0).cost == 0.0


def test_the_middle_of_turns_is_their_median() -> None:
    assert middle([turn(answers=number) for number in (5, 500, 50)], lambda each: each.rate) == 50.0


def test_failures_of_all_turns_count() -> None:
    assert failures([turn(failed=1), turn(failed=2)]) == 3
