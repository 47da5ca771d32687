"""Tests that share something are given to one worker, and to no two."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scheduling import BySharing, group_of, workers

DIFFERENTIAL = "tests/system/test_differential.py::test_a_client_sees_no_difference"


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("tests/system/test_matrix.py::test_a[x]", "tests/system/test_matrix.py::test_b[y]", True),
        ("tests/system/test_hooks.py::test_a[x]", "tests/system/test_hooks.py::test_b", True),
        ("tests/system/test_hooks.py::test_a[x]", "tests/system/test_skills.py::test_a", False),
        ("tests/docs/test_errors.py::test_a", "tests/docs/test_links.py::test_b", True),
        ("tests/docs/test_claims.py::test_a", "tests/docs/test_examples.py::test_b", False),
        (f"{DIFFERENTIAL}[odd-python1-alone]", f"{DIFFERENTIAL}[git-python1-sse]", True),
        (f"{DIFFERENTIAL}[odd-python1-alone]", f"{DIFFERENTIAL}[odd-python2-alone]", False),
        ("tests/system/test_matrix.py::test_a[x]", f"{DIFFERENTIAL}[odd-python1-alone]", False),
    ],
)
def test_tests_are_of_one_group_where_they_share(one: str, other: str, together: bool) -> None:
    assert (group_of(one) == group_of(other)) is together


def test_modules_whose_tests_share_a_fixture_have_groups() -> None:
    tests = Path(__file__).parent
    texts = {path.relative_to(tests.parent): path.read_text() for path in tests.rglob("test_*.py")}
    sharing = {
        path: text for path, text in texts.items() if '(scope="module")' in text and path.stem != Path(__file__).stem
    }
    assert len(sharing) > 5
    for path, text in sharing.items():
        assert any(group_of(f"{path}::{name}[a-b-c]") for name in re.findall(r"def (test_\w+)", text)), path


def test_a_test_that_shares_nothing_is_of_no_group() -> None:
    assert group_of("tests/test_ports.py::test_a_port_is_free") is None


@pytest.mark.parametrize(("cores", "number"), [(1, 3), (2, 6), (4, 8), (6, 8), (16, 16)])
def test_three_workers_share_a_core_where_there_are_few(cores: int, number: int) -> None:
    assert workers(cores, in_ci=False) == number


def test_in_ci_there_is_one_worker_on_each_core() -> None:
    assert workers(2, in_ci=True) == 2


def test_a_worker_that_has_not_collected_yet_is_given_no_work() -> None:
    """As the successor of a worker that died, where that of another has collected already."""
    scheduler = object.__new__(BySharing)
    scheduler.registered_collections, scheduler.assigned_work = {}, {"gw2": {}}
    scheduler._reschedule("gw2")
    assert scheduler.assigned_work == {"gw2": {}}
