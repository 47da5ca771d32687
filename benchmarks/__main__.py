"""Runs the benchmark: `python -m benchmarks [--quick] [--targets] [NAME ...]`, a name being a part of a workload's.

Everything, without names: then the report and its chart are written anew, those of a quick run into .cache/bench.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from benchmarks.chart import chart
from benchmarks.gathering import Scattered
from benchmarks.load import BrokenLoad
from benchmarks.machine import this_machine
from benchmarks.on_demand import idle_servers
from benchmarks.proxies import CACHE
from benchmarks.readings import Reading, Thoroughness, taken
from benchmarks.report import lines, reading_line, report
from benchmarks.results import Result, Row, keep, kept
from benchmarks.retrieval import retrieved
from benchmarks.rounds import Compared, Effort, available_cores, compare
from benchmarks.running import Cores, NotStarted, end_on_sigterm, split
from benchmarks.searching import searches
from benchmarks.workloads import TARGETS, WORKLOADS, Workload

FULL: Final = Effort(3, 2), Thoroughness(5, 10, (10, 1000, 10_000), 1000, 20, 20)
QUICK: Final = Effort(3, 1), Thoroughness(1, 3, (10, 1000), 1000, 5, 3)
QUICK_CROWD: Final = 1000
"""Larger ones take a minute to come together."""
HERE: Final = Path(__file__).parent
RESULT: Final = CACHE / "result.json"
COLLECTIONS: Final = CACHE / "collections"
"""Clones of collections of tools and queries; `make bench` fetches those that can be had."""


def main() -> None:
    arguments = _arguments()
    end_on_sigterm()
    if arguments.list:
        print("\n".join(workload.name for workload in WORKLOADS))
        return
    if not arguments.again:
        cores = split(available_cores())
        chosen = [workload for workload in WORKLOADS if _is_wanted(workload, arguments)]
        effort, thoroughness = QUICK if arguments.quick else FULL
        machine, rows = this_machine(), list(_rows(chosen, effort, cores))
        if arguments.names:
            return
        found = list(retrieved(sorted(COLLECTIONS.glob("*"))))
        keep(Result(machine, effort, rows, list(_readings(cores, thoroughness, effort)), found), RESULT)
    result, folder = kept(RESULT), CACHE if arguments.quick else HERE
    (folder / "REPORT.md").write_text(report(result))
    (folder / "chart.svg").write_text(chart(result))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only such workloads, and no report")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--targets", action="store_true", help="only workloads with a target, and no report")
    parser.add_argument("--list", action="store_true", help="the names of all workloads")
    parser.add_argument("--again", action="store_true", help="write the report of the last run again")
    arguments = parser.parse_args()
    arguments.names += TARGETS if arguments.targets else ()
    return arguments


def _is_wanted(workload: Workload, arguments: argparse.Namespace) -> bool:
    if arguments.names:
        return any(name in workload.name for name in arguments.names)
    return not (arguments.quick and workload.crowd > QUICK_CROWD)


def _rows(workloads: Sequence[Workload], effort: Effort, cores: Cores) -> Iterator[Row]:
    for workload in workloads:
        try:
            compared = compare(workload, effort, cores)
        except (BrokenLoad, Scattered, subprocess.TimeoutExpired) as error:
            print(f"{workload.name}: {error}", file=sys.stderr)
            compared = Compared({}, {"all": str(error)})
        row = Row(workload.name, workload.section, workload.point, compared.turns, compared.absent)
        print("\n".join(lines(row)), flush=True)
        yield row


def _readings(cores: Cores, thoroughness: Thoroughness, effort: Effort) -> Iterator[Reading]:
    further = _of_idle_servers(cores, thoroughness), _of_searches(cores, effort)
    for reading in chain(taken(cores, thoroughness), *further):
        print(reading_line(reading), flush=True)
        yield reading


def _of_idle_servers(cores: Cores, thoroughness: Thoroughness) -> Iterator[Reading]:
    try:
        yield from idle_servers(cores, thoroughness.idle_servers)
    except (NotStarted, TimeoutError, subprocess.SubprocessError) as error:
        print(f"idle servers: {error}", file=sys.stderr)


def _of_searches(cores: Cores, effort: Effort) -> Iterator[Reading]:
    try:
        yield from searches(cores, effort)
    except (BrokenLoad, NotStarted, TimeoutError, subprocess.SubprocessError) as error:
        print(f"searches: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
