"""Which tests xdist gives to one worker, since they share what was started or read for them.

These come first, the largest such group before the others, so that no worker ends long after the rest. All other tests
go one by one to the worker that is free. (Marks of `xdist_group` do nothing under pytest 9.2: pytest-xdist#1386.)
"""

from __future__ import annotations

import re
from typing import Final

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.depth import IN_CI

SHARING: Final = (
    re.compile(r"tests/conformance/test_client_scenarios\.py::test_the_suite_finds_nothing_wrong\["),
    re.compile(r"tests/system/test_matrix\.py::"),
    re.compile(r"tests/system/test_(?P<module>skills|search|extensions|operator_approvals|hooks|tool_settings)\.py::"),
    re.compile(r"tests/admin/test_browser\.py::"),
    re.compile(r"tests/field/stdio/test_answers\.py::"),
    re.compile(r"tests/deploy/test_(?P<module>first_answer|wheel)\.py::"),
    re.compile(r"tests/docs/(?!test_examples)"),
    re.compile(r"tests/system/test_differential\.py::test_a_client_sees_no_difference\[\w+-(?P<client>\w+)-"),
)
"""Tests are of one group if one of these matches their ids, with the same named parts."""

MANY: Final = 8
"""Workers from which on there is one on each core."""


def workers(cores: int, *, in_ci: bool = IN_CI) -> int:
    """How many run at once: three on each core, since most of a test's time is waiting, and on many cores fewer.

    With two on each, a sixth of two cores' time was nobody's. In CI one on each: there coverage has them compute for
    most of their time.
    """
    return cores if in_ci else max(cores, min(3 * cores, MANY))


class BySharing(LoadScopeScheduling):  # type: ignore[misc]  # xdist comes without types
    """One unit of work for each group, and for each test of none.

    Mends what xdist's own does where a worker dies: it runs the test again by which it died, and gives its successor a
    single test, which that one does not begin before it knows of another.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid) or nodeid

    def remove_node(self, node: WorkerController) -> str | None:
        """Returns the test that the worker died of, if it died; all others that it had not begun are run elsewhere."""
        units = self.assigned_work.pop(node)
        left: list[tuple[dict[str, bool], str]] = [
            (unit, test) for unit in units.values() for test, done in unit.items() if not done
        ]
        if not left:
            return None
        unit, fatal = left[0]
        unit[fatal] = True
        self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return fatal

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # The successor of a worker that died, which collects still, is given work once it has.
        super()._reschedule(node)
        if self._pending_of(self.assigned_work[node]) == 1:
            super()._reschedule(node)


def group_of(nodeid: str) -> str | None:
    for pattern in SHARING:
        if found := pattern.match(nodeid):
            return " ".join([pattern.pattern, *found.groupdict().values()])
    return None
