"""What was measured, as a person reads it: a block on the terminal, or the whole as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from benchmarks.machine import Machine
from benchmarks.proxies import DIRECT, MCPROXY, NGINX, NOTHING
from benchmarks.ratios import Ratio, Turn, added, failures, middle, ratio
from benchmarks.readings import Reading, Unit
from benchmarks.results import Result, Row
from benchmarks.retrieval import Retrieved, table
from benchmarks.rounds import Effort
from benchmarks.workloads import CURVES, Section

NONE: Final = "–"
IDLER: Final = 0.9
"""A proxy that used less of its core than this share of what mcproxy used was not asked all that it can."""

WAITS: Final[Sequence[Callable[[Turn], float]]] = (lambda turn: turn.load.p50, lambda turn: turn.load.p99)

INTRODUCTION: Final = """\
# What a call costs behind mcproxy

Written by `make bench`. Each proxy has one core for itself, the load (`wrk`) and the upstream have the others. The
proxies take turns, and each number is the median of the ratios of their turns, with the lowest and the highest in
parentheses: 1 is as much as the other. Of throughput more is better, of all else less.

*Do-nothing* is a reverse proxy of thirty lines on aiohttp and uvloop: it reads the body, sends it on
and returns the answer. *Processor* is the time of the process and its children for one call, an upstream over stdio
not included. *Added* is the time that a client waits beyond what it waits for the upstream without a proxy. A `<`
stands where the other proxy left more of its core idle than mcproxy did: it could have done more than it was asked.
Every answer was checked for its status and content. `wrk` asks again as soon as it is answered: with many connections,
what is added is for the most part the wait for one core.

![Processor time of calls](chart.svg)"""


def lines(row: Row) -> Iterator[str]:
    """A block for the terminal: absolute numbers, and mcproxy's ratios to each of the others."""
    yield f"\n{row.name}"
    ours = row.turns.get(MCPROXY)
    for proxy, turns in row.turns.items():
        yield f"  {proxy:<17}{_absolute(turns)}{'' if ours in (None, turns) else _against(ours, turns)}"
    yield from (f"  {remark}" for remark in _remarks(row))


def reading_line(reading: Reading) -> str:
    return f"{reading.name}: {reading.value:.2f} {reading.unit.value} ({reading.per})"


def report(result: Result) -> str:
    parts = (
        [INTRODUCTION],
        _calls(result.of(Section.CALLS), NOTHING),
        _calls(result.of(Section.CALLS), NGINX),
        _peers(result.of(Section.PEERS)),
        _growth(result),
        _readings(result.readings, result.call_of(NOTHING)),
        _retrieval(result.retrieval),
        _numbers(result.rows),
        _omissions(result.rows),
        _facts(result.machine, result.effort),
    )
    return "\n".join(chain.from_iterable(parts)) + "\n"


def _calls(rows: Sequence[Row], than: str) -> Iterator[str]:
    yield f"\n## In terms of {than}\n"
    yield from _head("workload", "throughput", "processor", "added p50", "added p99", "memory")
    for row in rows:
        if {MCPROXY, than} <= row.turns.keys():
            ours, theirs = row.turns[MCPROXY], row.turns[than]
            memory = ratio(*([turn.memory.proportional for turn in turns] for turns in (ours, theirs)))
            waits = (shown(_waits(row, than, wait)) for wait in WAITS)
            yield _line(row.name, _rates(row, than), shown(row.costs(than)), *waits, shown(memory))


def _peers(rows: Sequence[Row]) -> Iterator[str]:
    yield "\n## Against proxies that know MCP\n"
    yield from _head(
        "workload", "proxy", "throughput of mcproxy, in its", "processor of mcproxy, in its", "memory, MiB"
    )
    for row in rows:
        for name, turns in row.turns.items():
            cost = None if name == MCPROXY else row.costs(name)
            yield _line(row.name, name, _rates(row, name), shown(cost), _mebibytes(turns))


def _growth(result: Result) -> Iterator[str]:
    yield "\n## What grows with what there is\n"
    yield "Processor time of a 100 B call at c=64, in that of the first line of each kind.\n"
    yield from _head("there are", "processor", "memory, MiB")
    for section in CURVES:
        for row, cost in result.curve(section):
            yield _line(f"{section.value}: {row.point:,}", shown(cost), _mebibytes(row.turns[MCPROXY]))


def _readings(readings: Sequence[Reading], call: float | None) -> Iterator[str]:
    """`call` is the processor time of a call through do-nothing, in seconds."""
    yield "\n## Starting, waiting, listening\n"
    yield from _head("what", "", "of")
    for reading in readings:
        yield _line(reading.name, _in_calls(reading, call), reading.per)


def _retrieval(found: Sequence[Retrieved]) -> Iterator[str]:
    if not found:
        return
    yield "\n## How often a search finds the right tool\n"
    yield "The share of the right tools among the first five or ten; the mean over all queries of a public collection."
    yield "What is ranked and how, and where the collections are, is in [RETRIEVAL.md](RETRIEVAL.md).\n"
    yield from table(found)


def _in_calls(reading: Reading, call: float | None) -> str:
    """Times of the processor in a measure that holds on other machines too, where there is one."""
    if reading.unit is Unit.PROCESSOR_MICROSECONDS and call:
        return f"{reading.value / 1e6 / call:.2f} calls through do-nothing"
    return f"{reading.value:.3g} {reading.unit.value}"


def _numbers(rows: Sequence[Row]) -> Iterator[str]:
    yield "\n## The numbers behind\n"
    yield "Of this machine and this hour; they compare with nothing else.\n"
    yield from _head(
        "workload", "proxy", "calls/s", "processor, us", "core used", "p50, ms", "p99, ms", "PSS, MiB", "wrong"
    )
    for row in rows:
        for name, turns in row.turns.items():
            numbers = (
                f"{middle(turns, lambda turn: turn.rate):,.0f}",
                f"{middle(turns, lambda turn: turn.cost) * 1e6:.0f}",
                f"{middle(turns, lambda turn: turn.busy):.0%}",
                f"{middle(turns, lambda turn: turn.load.p50) * 1e3:.2f}",
                f"{middle(turns, lambda turn: turn.load.p99) * 1e3:.2f}",
                _mebibytes(turns),
                str(failures(turns)),
            )
            yield _line(row.name, name, *numbers)


def _omissions(rows: Sequence[Row]) -> Iterator[str]:
    omitted = [(row.name, remark) for row in rows for remark in _remarks(row)]
    if omitted:
        yield "\n## Left out, and wrong\n"
        yield from (f"- {name}: {remark}" for name, remark in omitted)


def _facts(machine: Machine, effort: Effort) -> Iterator[str]:
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    yield "\n## Machine and versions\n"
    yield f"- {machine.day}, mcproxy at {machine.commit}"
    yield f"- {machine.processor}, {machine.cores} cores, {machine.memory / 2**30:.1f} GiB, {machine.system}"
    yield f"- {effort.rounds} rounds, {effort.seconds:g} s of load each turn"
    yield f"- load average before the run: {machine.load_before:.2f}"
    yield f"- {versions}"


def _remarks(row: Row) -> Iterator[str]:
    for proxy, turns in row.turns.items():
        if failures(turns):
            sample = next((turn.load.sample for turn in turns if turn.load.sample), "no answer")
            yield f"{proxy}: {failures(turns)} answers were wrong or missing, such as: {_one_line(sample)}"
        elif not all(turn.load.answers for turn in turns):
            yield f"{proxy}: a turn ended before the first answer"
    for proxy, reason in row.absent.items():
        yield f"{proxy} is left out: {_one_line(reason)}"


def _rates(row: Row, than: str) -> str:
    ours, theirs = row.turns.get(MCPROXY), row.turns[than]
    if ours is None or ours is theirs:
        return NONE
    idler = middle(theirs, lambda turn: turn.busy) < IDLER * middle(ours, lambda turn: turn.busy)
    return f"{'< ' if idler else ''}{shown(ratio([turn.rate for turn in ours], [turn.rate for turn in theirs]))}"


def _waits(row: Row, than: str, wait: Callable[[Turn], float]) -> Ratio | None:
    """What mcproxy adds to what clients wait, in what the other adds."""
    if DIRECT not in row.turns:
        return None
    ours, theirs, direct = ([wait(turn) for turn in row.turns[name]] for name in (MCPROXY, than, DIRECT))
    return ratio(added(ours, direct), added(theirs, direct))


def _absolute(turns: Sequence[Turn]) -> str:
    rate, cost = middle(turns, lambda turn: turn.rate), middle(turns, lambda turn: turn.cost) * 1e6
    p50, p99 = middle(turns, lambda turn: turn.load.p50) * 1e3, middle(turns, lambda turn: turn.load.p99) * 1e3
    busy = f"{middle(turns, lambda turn: turn.busy):4.0%} busy"
    return f"{rate:8.0f}/s {cost:6.0f} us/call {busy}  p50 {p50:7.2f} p99 {p99:7.2f} ms {_mebibytes(turns):>4} MiB"


def _against(ours: Sequence[Turn], theirs: Sequence[Turn]) -> str:
    rate = ratio([turn.rate for turn in ours], [turn.rate for turn in theirs])
    cost = ratio([turn.cost for turn in ours], [turn.cost for turn in theirs])
    return f"  mcproxy: rate {shown(rate)}, cost {shown(cost)}"


def shown(ratio: Ratio | None) -> str:
    """The median, with the lowest and the highest."""
    return NONE if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def _mebibytes(turns: Sequence[Turn]) -> str:
    return f"{turns[-1].memory.proportional / 2**20:.0f}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _head(*titles: str) -> Iterable[str]:
    return _line(*titles), _line("---", *["---:"] * (len(titles) - 1))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
