"""The progress of a request rises however often its upstream begins anew, and is untouched where it does not."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.downstream.io.progress import ProgressSeries
from mcproxy.protocol.jsonrpc import first_level

NUMBERS = st.integers(-9, 1000) | st.floats(-9, 1000)


def told(*reports: Any) -> list[Any]:
    """What the client gets of reports; None of one that it does not get."""
    series = ProgressSeries()
    heard = [series.continued(first_level(report)) for report in reports]
    return [None if each is None else {key: json.loads(bytes(value)) for key, value in each.items()} for each in heard]


def test_r32_progress_that_rises_passes_byte_for_byte() -> None:
    series = ProgressSeries()
    for progress in (0, 0.5, 1, 1, 7):
        report = first_level({"message": "m", "progress": progress, "total": 7, "x": None})
        assert series.continued(report) is report


def test_progress_that_begins_anew_goes_on_from_what_was_reached() -> None:
    first, second = {"progress": 50, "total": 100, "message": "a"}, {"progress": 10, "total": 100, "message": "b"}
    assert told(first, second, first, second) == [
        first,
        {"progress": 60, "total": 150, "message": "b"},
        {"progress": 100, "total": 150, "message": "a"},
        {"progress": 110, "total": 200, "message": "b"},
    ]


def test_what_says_no_more_than_the_client_knows_is_not_told_again() -> None:
    assert told({"progress": 5}, {"progress": 0}, {"progress": -1}, {"progress": 2}) == [
        {"progress": 5},
        None,
        None,
        {"progress": 7},
    ]


@pytest.mark.parametrize("report", [{}, {"progress": "half"}, {"progress": True}, {"progress": None}])
def test_a_report_without_a_number_passes(report: Any) -> None:
    assert told({"progress": 5}, report, {"progress": 6}) == [{"progress": 5}, report, {"progress": 6}]


@pytest.mark.parametrize("most", [1e308, 10**400, 10**18])
def test_numbers_beyond_all_measure_fail_nothing(most: float) -> None:
    heard = told({"progress": 0.5}, {"progress": 0.25}, {"progress": most, "total": most}, {"progress": 1, "total": 2})
    assert heard[:2] == [{"progress": 0.5}, {"progress": 0.75}]


@given(st.lists(NUMBERS))
def test_what_the_client_hears_never_falls(reports: list[float]) -> None:
    heard = [each["progress"] for each in told(*({"progress": progress} for progress in reports)) if each is not None]
    assert all(one <= other for one, other in pairwise(heard))
