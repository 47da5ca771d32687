"""What a run of the benchmark found, as a value that can be kept and read again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from benchmarks.machine import Machine
from benchmarks.proxies import MCPROXY, NOTHING
from benchmarks.ratios import Ratio, Turn, middle, ratio
from benchmarks.readings import Reading
from benchmarks.retrieval import Retrieved
from benchmarks.rounds import Effort
from benchmarks.workloads import Section


@dataclass(frozen=True, slots=True)
class Row:
    """One workload."""

    name: str
    section: Section
    point: int
    turns: dict[str, list[Turn]]
    """By the name of the proxy, one for each round."""
    absent: dict[str, str]
    """Proxies that took no part, and why."""

    def costs(self, than: str) -> Ratio | None:
        """Processor time of a call through mcproxy, in calls through another."""
        ours, theirs = self.turns.get(MCPROXY), self.turns.get(than)
        if ours is None or theirs is None:
            return None
        return ratio([turn.cost for turn in ours], [turn.cost for turn in theirs])


@dataclass(frozen=True, slots=True)
class Result:
    machine: Machine
    effort: Effort
    rows: list[Row]
    readings: list[Reading]
    retrieval: list[Retrieved] = field(default_factory=list)
    """Of the collections that were there."""

    def of(self, section: Section) -> list[Row]:
        return [row for row in self.rows if row.section is section]

    def call_of(self, proxy: str) -> float | None:
        """Processor seconds of a call through a proxy, as the first workload that it took part in has it."""
        return next((middle(row.turns[proxy], lambda turn: turn.cost) for row in self.rows if proxy in row.turns), None)

    def curve(self, section: Section) -> Iterator[tuple[Row, Ratio]]:
        """The costs along a curve, in those of its first point."""
        first: float | None = None
        for row in self.of(section):
            cost = row.costs(NOTHING)
            if cost is not None:
                first = first or cost.median
                yield row, Ratio(cost.median / first, cost.low / first, cost.high / first)


def keep(result: Result, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(result))


def kept(file: Path) -> Result:
    return msgspec.json.decode(file.read_bytes(), type=Result)


def names(rows: Sequence[Row]) -> list[str]:
    """Every proxy that took part, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.turns))
