"""What load from wrk does not show: the cost of starting, of waiting, of sessions that listen, and of telling them.

Each reading is of mcproxy alone, from a gateway of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.asking import answered
from benchmarks.gathering import gathered
from benchmarks.proxies import MCPROXY, NOTHING, PROXIES
from benchmarks.rounds import proxy_running, scene, upstream
from benchmarks.running import Cores, alone
from benchmarks.usage import memory, processor_seconds
from benchmarks.workloads import NAMES, Workload, ask_of, call
from mcproxy.protocol.eras import Era

SETTLE: Final = 1.0
"""Seconds after a change for what it set off to end."""
FIRST: Final = 50
"""Sessions that are there before those that are weighed: the first ones bring what all share."""


class Unit(Enum):
    TIMES = "x"
    PERCENT = "%"
    MEBIBYTES = "MiB"
    KIBIBYTES = "KiB"
    MILLISECONDS = "ms"
    PROCESSOR_MICROSECONDS = "us"


@dataclass(frozen=True, slots=True)
class Reading:
    name: str
    value: float
    unit: Unit
    per: str = ""
    """What it is a share of, or compared with."""


@dataclass(frozen=True, slots=True)
class Thoroughness:
    starts: int
    idle_seconds: float
    crowds: Sequence[int]
    subscribers: int
    updates: int
    idle_servers: int


@dataclass(frozen=True, slots=True)
class Front:
    """A gateway that runs, with its upstream."""

    pid: int
    port: int
    upstream: int
    started: float
    """Seconds from its start to the first right answer."""


@contextmanager
def front(workload: Workload, cores: Cores, name: str = MCPROXY) -> Iterator[Front]:
    """A proxy that has answered once for each of its upstreams."""
    proxy = PROXIES[name]
    with TemporaryDirectory() as folder, upstream(workload.tools, Path(folder), cores) as behind:
        stage = scene(workload, Path(folder) / name, behind, cores)
        began = time.monotonic()
        with proxy_running(proxy, stage, cores) as pid:
            for number in range(workload.upstreams):
                answered(stage.port, ask_of(workload, proxy, number), workload.era)
            yield Front(pid, stage.port, behind, time.monotonic() - began)


def taken(cores: Cores, thoroughness: Thoroughness) -> Iterator[Reading]:
    with alone():
        yield from _starts(cores, thoroughness.starts)
        yield from _idle(cores, thoroughness.idle_seconds)
        for sessions in thoroughness.crowds:
            yield from _sessions(cores, sessions, thoroughness.idle_seconds)
        for era in Era:
            yield from _fan_out(cores, era, thoroughness.subscribers, thoroughness.updates)


def _starts(cores: Cores, times: int) -> Iterator[Reading]:
    nothing = median(_start(cores, 1, NOTHING) for _ in range(times))
    for upstreams in (1, 20):
        seconds = median(_start(cores, upstreams, MCPROXY) for _ in range(times))
        yield Reading(
            f"start to answers of {_count(upstreams, 'upstream')}", seconds / nothing, Unit.TIMES, "do-nothing's start"
        )


def _start(cores: Cores, upstreams: int, name: str) -> float:
    with front(Workload("start", call(), upstreams=upstreams), cores, name) as at:
        return at.started


def _idle(cores: Cores, seconds: float) -> Iterator[Reading]:
    few, many = 1, 50
    sizes: dict[int, int] = {}
    for upstreams in (few, many):
        with front(Workload("idle", call(), upstreams=upstreams), cores) as at:
            time.sleep(SETTLE)
            sizes[upstreams] = memory(at.pid).resident
            yield _idle_share(f"idle, {_count(upstreams, 'upstream')}", at, seconds)
    yield Reading("memory, one upstream", sizes[few] / 2**20, Unit.MEBIBYTES, "whole process")
    yield Reading(
        "memory of each further upstream", (sizes[many] - sizes[few]) / (many - few) / 2**10, Unit.KIBIBYTES, "upstream"
    )


def _sessions(cores: Cores, sessions: int, seconds: float) -> Iterator[Reading]:
    with front(Workload("sessions", call()), cores) as at, gathered(at.port, cores, FIRST):
        time.sleep(SETTLE)
        before = memory(at.pid).resident
        with gathered(at.port, cores, sessions):
            time.sleep(SETTLE)
            grown = memory(at.pid).resident - before
            yield Reading(
                f"memory, {sessions:,} sessions that listen", grown / sessions / 2**10, Unit.KIBIBYTES, "session"
            )
            yield _idle_share(f"idle, {sessions:,} sessions that listen", at, seconds)


def _fan_out(cores: Cores, era: Era, subscribers: int, updates: int) -> Iterator[Reading]:
    name = f"one update to {subscribers:,} subscribers, {NAMES[era]}"
    with (
        front(Workload("fan-out", call(), era=era), cores) as at,
        gathered(at.port, cores, subscribers, era, upstream=at.upstream, updates=updates) as crowd,
    ):
        before = processor_seconds(at.pid)
        crowd.tell("go")
        seconds = float(crowd.expect("told "))
        used = processor_seconds(at.pid) - before
        yield Reading(
            f"processor, {name}", used / updates / subscribers * 1e6, Unit.PROCESSOR_MICROSECONDS, "subscriber"
        )
        yield Reading(f"until all have it, {name}", seconds / updates * 1e3, Unit.MILLISECONDS, "update")


def _idle_share(name: str, at: Front, seconds: float) -> Reading:
    before = processor_seconds(at.pid)
    time.sleep(seconds)
    return Reading(f"processor, {name}", (processor_seconds(at.pid) - before) / seconds * 100, Unit.PERCENT, "one core")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
