"""What the looks of a long run add up to."""

from __future__ import annotations

from tests.bench.soak import Look, grown, table, verdict


def look(second: int, resident: float = 1.0, files: int = 40, failures: int = 0) -> Look:
    return Look(second, 100.0, 0.02, failures, int(resident * 2**20), files)


def test_growth_is_that_of_the_last_quarter_over_the_first_warm_one() -> None:
    assert grown([1, 1, 10, 10, 12, 12, 20, 20]) == 2.0


def test_a_single_look_has_not_grown() -> None:
    assert grown([5]) == 1.0


def test_a_steady_run_is_well() -> None:
    assert verdict([look(second) for second in range(8)]) == []


def test_wrong_answers_memory_and_files_are_each_complained_of() -> None:
    growing = [look(second, resident=100 + 20 * second, files=40 + 10 * second, failures=1) for second in range(8)]
    assert verdict(growing) == [
        "8 answers were wrong or missing",
        "memory grew to 1.53 of what it was",
        "open files grew to 1.62 of what they were",
    ]


def test_a_look_is_a_line() -> None:
    assert list(table([look(10)]))[-1] == "| 10 | 100 | 20.0 | 0 | 1.0 | 40 |"
