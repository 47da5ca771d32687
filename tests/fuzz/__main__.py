"""`python -m tests.fuzz --minutes 60 --seed 1`: requests and answers that are nearly right, both at once.

Prints what was sent, what came back, and what was found; fails if anything was.
"""

from __future__ import annotations

import argparse
import sys

import anyio

from tests.fuzz import answers, http
from tests.processes import give_children_default_signals


async def main(minutes: float, seed: int) -> bool:
    """Whether nothing was found."""
    reports: list[http.Report | answers.Report] = []

    async def requests_fuzzed() -> None:
        reports.append(await http.main(minutes, seed))

    async def answers_fuzzed() -> None:
        reports.append(await answers.main(minutes, seed))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(requests_fuzzed)
        tasks.start_soon(answers_fuzzed)
    for report in reports:
        print(f"{report}\n")
    return not any(report.findings for report in reports)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    give_children_default_signals()
    sys.exit(0 if anyio.run(main, given.minutes, given.seed) else 1)
