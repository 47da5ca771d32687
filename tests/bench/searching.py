"""What a search of the gateway's own costs, in calls that go to an upstream: processor time, in the same run.

Both are asked of one gateway in front of a thousand tools, in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from mcproxy.protocol.eras import Era
from tests.bench import asking, load
from tests.bench.answers import MARK
from tests.bench.proxies import MCPROXY, PROXIES
from tests.bench.readings import Front, Reading, Unit, front
from tests.bench.rounds import WARM_UP, Effort
from tests.bench.running import Cores, alone
from tests.bench.usage import processor_seconds
from tests.bench.variants import SEARCHED
from tests.bench.workloads import Workload, ask_of, call

TOOLS: Final = 1000
CONNECTIONS: Final = 16
QUERY: Final = "cancel the order of a customer"
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
    return _plan(port, ask_of(_WORKLOAD, PROXIES[MCPROXY], 0), "/mcp")


def searched(port: int) -> load.Plan:
    find = {"name": "find_tools", "arguments": {"query": QUERY}}
    return _plan(port, asking.Ask("tools/call", find, MARK, _FOUND), "/mcp/agent")


def _plan(port: int, ask: asking.Ask, path: str) -> load.Plan:
    wire = asking.post(ask, Era.STATELESS, None).wire(port, path)
    return load.Plan(port, [wire], ask.mark, ask.at_least, CONNECTIONS)


def _cost(at: Front, plan: load.Plan, seconds: float, folder: Path, cores: Cores) -> float:
    """Processor seconds of one answer. Raises load.BrokenLoad where one is wrong."""
    before = processor_seconds(at.pid)
    done = load.run(plan, seconds, folder, cores.others)
    if done.failures or not done.answers:
        raise load.BrokenLoad(f"{done.failures} answers were wrong or missing, such as: {done.sample}")
    return (processor_seconds(at.pid) - before) / done.answers
