"""Runs the benchmark: `python -m tests.bench [--quick] [NAME ...]`, a name being a part of a workload's."""

from __future__ import annotations

import argparse

from tests.bench.report import lines
from tests.bench.rounds import Effort, available_cores, compare
from tests.bench.running import split
from tests.bench.workloads import WORKLOADS

FULL, QUICK = Effort(5, 3), Effort(3, 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--quick", action="store_true", help="minutes instead of half an hour")
    arguments = parser.parse_args()
    cores = split(available_cores())
    effort = QUICK if arguments.quick else FULL
    for workload in WORKLOADS:
        if not arguments.names or any(name in workload.name for name in arguments.names):
            compared = compare(workload, effort, cores)
            print("\n".join(lines(workload.name, compared)), flush=True)


if __name__ == "__main__":
    main()
