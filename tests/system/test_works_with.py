"""The table of what works with what is of the SDKs that are pinned, and counts what the matrix tells it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import pytest

from tests.system.works_with import RESULTS, Tally, versions


def test_the_table_is_of_the_pinned_versions() -> None:
    assert json.loads(RESULTS.read_text())["versions"] == versions(), "run `python -m tests.system.works_with`"


def report(case: str, when: str, outcome: str) -> pytest.TestReport:
    flags = {name: name == outcome for name in ("passed", "failed", "skipped")}
    nodeid = f"test_matrix.py::test_a_call[{case}]"
    return cast(pytest.TestReport, SimpleNamespace(nodeid=nodeid, when=when, **flags))


def test_each_test_counts_once() -> None:
    tally = Tally()
    for when in ("setup", "call", "teardown"):
        tally.pytest_runtest_logreport(report("go-modern-http-python-legacy-stdio", when, "passed"))
    tally.pytest_runtest_logreport(report("go-legacy-http-python-legacy-stdio", "setup", "failed"))
    assert tally.pairs == {"go": {"python": [1, 2]}}
    assert not tally.skipped


def test_a_skipped_test_is_noticed() -> None:
    tally = Tally()
    tally.pytest_runtest_logreport(report("go-modern-http-go-legacy-stdio", "setup", "skipped"))
    assert tally.skipped
