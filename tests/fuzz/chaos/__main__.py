"""`python -m tests.fuzz.chaos --minutes 60 --seed 1`: a chaos run, and its report. Fails if it found anything."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import anyio

from tests.fuzz.chaos.run import Chaos, main, report
from tests.processes import give_children_default_signals

parser = argparse.ArgumentParser(prog="python -m tests.fuzz.chaos", description=__doc__)
parser.add_argument("--minutes", type=float, default=10)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--clients", type=int, default=2, help="for each of three principals and two eras")
parser.add_argument("--log", type=Path, default=None, help="file for the gateway's log")
given = parser.parse_args()


def progress(chaos: Chaos) -> None:
    print(report(chaos, chaos.calms[-1].second / 60), flush=True)


# Under `nohup` a gateway that is started from here would take no SIGHUP.
give_children_default_signals()
done = anyio.run(lambda: main(given.minutes, given.seed, clients=given.clients, on_calm=progress))
print(report(done, given.minutes))
sys.exit(1 if done.ledger.findings else 0)
