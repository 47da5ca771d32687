"""The twin of `mcproxy.catalog.views.derived`."""

from __future__ import annotations

from mcproxy.catalog.views.derived import BYTES, SLICE, WORKED_OUT, deriving
from mcproxy.concurrency.turns import at_once


class Counting:
    """A function that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, entry: str) -> str:
        self.calls.append(entry)
        return entry.upper()


def test_only_entries_that_the_list_before_did_not_have_are_worked_out() -> None:
    function = Counting()
    before = at_once(deriving(["a", "b", "c"], function))
    after = at_once(deriving(["c", "d", "a"], function, before))
    assert after.results == ("C", "D", "A")
    assert function.calls == ["a", "b", "c", "d"]


def test_an_entry_that_is_only_equal_to_one_before_is_worked_out_anew() -> None:
    function = Counting()
    one, other = ("".join(["a", "b"]) for _ in range(2))
    before = at_once(deriving([one], function))
    at_once(deriving([other], function, before))
    assert function.calls == ["ab", "ab"]


def test_r78_others_have_their_turn_while_many_entries_are_worked_out() -> None:
    in_a_turn = SLICE // WORKED_OUT
    assert sum(1 for _ in deriving(map(str, range(10 * in_a_turn)), Counting())) == 10


def test_r78_others_have_their_turn_the_more_often_the_larger_entries_are() -> None:
    def turns(size: int) -> int:
        return sum(1 for _ in deriving(map(str, range(100)), Counting(), size=lambda entry: size))

    assert (turns(0), turns(SLICE * BYTES)) == (1, 100)
