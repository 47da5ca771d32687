"""What the looks of a long run add up to."""

from __future__ import annotations

from benchmarks.soak import MINUTE, Look, grown, summary, table, verdict


def look(second: int, resident: float = 1.0, files: int = 40, failures: int = 0, p99: float = 0.02) -> Look:
    return Look(second, 100.0, 0.01, p99, failures, int(resident * 2**20), files, tasks=files)


def test_growth_is_that_of_the_last_quarter_over_the_first_warm_one() -> None:
    assert grown([1, 1, 10, 10, 12, 12, 20, 20]) == 2.0


def test_a_single_look_has_not_grown() -> None:
    assert grown([5]) == 1.0


def test_a_steady_run_is_well() -> None:
    assert verdict([look(second) for second in range(8)]) == []


def test_wrong_answers_memory_files_and_tasks_are_each_complained_of() -> None:
    growing = [look(second, resident=100 + 20 * second, files=40 + 10 * second, failures=1) for second in range(8)]
    assert verdict(growing) == [
        "8 answers were wrong or missing",
        "memory: 1.53 of what it was",
        "open files: 1.62 of what it was",
        "tasks: 1.62 of what it was",
    ]


def test_a_minute_is_a_line_with_the_longest_wait_of_it() -> None:
    looks = [look(10 * number, failures=1, p99=0.02 + number / 1000) for number in range(MINUTE + 1)]
    assert list(table(looks))[-2:] == [
        "| 1 | 100 | 10.0 | 25.0 | 6 | 1.0 | 40 | 40 |",
        "| 2 | 100 | 10.0 | 26.0 | 1 | 1.0 | 40 | 40 |",
    ]


def test_the_summary_sets_the_longest_waits_against_the_usual_one() -> None:
    looks = [look(10, p99=0.01), look(20, p99=0.02), look(30, p99=0.05)]
    assert summary(looks) == "p99 in terms of p50, slice by slice: median 2.00, 1.00 to 5.00"
