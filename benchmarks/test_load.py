"""The plan as wrk's script reads it, and what is made of what wrk prints."""

from __future__ import annotations

import pytest

from benchmarks.asking import NUMBER
from benchmarks.load import BrokenLoad, Load, Plan, lua, parse, quoted

PRINTED = 'Running 1s test\n  Latency 1ms\n\nRESULT 5000 2000000 1500 9000 1 2 3 "503 busy\\\ngone"\n'


def test_a_text_is_quoted_whatever_it_holds() -> None:
    assert quoted('a"b\\c\r\né ') == r'"a\034b\092c\013\010\195\169 "'


def test_each_request_has_a_place_for_its_number() -> None:
    plan = Plan(80, [f"one {NUMBER} two {NUMBER}", "three"], "bench:", 100, 4)
    assert lua(plan) == ('return {mark = "bench:", at_least = 100, requests = {\n{"one "," two ",""},\n{"three"}\n}}\n')


def test_what_wrk_prints_is_read_in_seconds_with_all_failures_together() -> None:
    assert parse(PRINTED) == Load(5000, 2.0, 0.0015, 0.009, 6, "503 busy\\\ngone")


def test_a_run_without_a_result_is_no_run_of_zero() -> None:
    with pytest.raises(BrokenLoad, match="unable to connect"):
        parse("unable to connect to 127.0.0.1")
