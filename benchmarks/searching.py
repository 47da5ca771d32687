"""What a search of the gateway's own costs, in calls that go to an upstream: processor time, in the same run.

Both are asked of one gateway in front of a thousand tools, in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import asking, load
from benchmarks.answers import MARK, PLACES, THINGS, VERBS
from benchmarks.proxies import MCPROXY, PROXIES
from benchmarks.readings import Front, Reading, Unit, front
from benchmarks.rounds import WARM_UP, Effort
from benchmarks.running import Cores, alone
from benchmarks.usage import processor_seconds
from benchmarks.variants import SEARCHED
from benchmarks.workloads import Workload, ask_of, call
from mcproxy.protocol.eras import Era

TOOLS: Final = 1000
CONNECTIONS: Final = 16
QUERIES: Final = tuple(f"{verb} the {thing} of {place}" for thing in THINGS for verb in VERBS for place in PLACES)
"""A thousand, each other than the rest, so that no answer that is kept would serve."""
_FOUND: Final = 500
"""Bytes of ten tools in one line each, at the least."""
_WORKLOAD: Final = Workload("search", call(), era=Era.STATELESS, tools=TOOLS, variant=SEARCHED)


def searches(cores: Cores, effort: Effort) -> Iterator[Reading]:
    """Raises load.BrokenLoad, and NotStarted."""
    with alone(), TemporaryDirectory() as folder, front(_WORKLOAD, cores) as at:
        place, plans = Path(folder), (called(at.port), searched(at.port))
        for plan in plans:
            load.run(plan, WARM_UP, place, cores.others)
        turns = [[_cost(at, plan, effort.seconds, place, cores) for plan in plans] for _ in range(effort.rounds)]
    ratio = median(search / one for one, search in turns)
    yield Reading(f"processor, a search over {TOOLS:,} tools", ratio, Unit.TIMES, "call of an upstream's tool")


def called(port: int) -> load.Plan:
    return _plan(port, [ask_of(_WORKLOAD, PROXIES[MCPROXY], 0)], "/mcp")


def searched(port: int) -> load.Plan:
    finds = [{"name": "find_tools", "arguments": {"query": query}} for query in QUERIES]
    return _plan(port, [asking.Ask("tools/call", find, MARK, _FOUND) for find in finds], "/mcp/agent")


def _plan(port: int, asks: Sequence[asking.Ask], path: str) -> load.Plan:
    """One for asks that are answered alike."""
    wires = [asking.post(ask, Era.STATELESS, None).wire(port, path) for ask in asks]
    return load.Plan(port, wires, asks[0].mark, asks[0].at_least, CONNECTIONS)


def _cost(at: Front, plan: load.Plan, seconds: float, folder: Path, cores: Cores) -> float:
    """Processor seconds of one answer. Raises load.BrokenLoad where one is wrong."""
    before = processor_seconds(at.pid)
    done = load.run(plan, seconds, folder, cores.others)
    if done.failures or not done.answers:
        raise load.BrokenLoad(f"{done.failures} answers were wrong or missing, such as: {done.sample}")
    return (processor_seconds(at.pid) - before) / done.answers
