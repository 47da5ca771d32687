"""What was measured, as a person reads it on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.bench.proxies import MCPROXY
from tests.bench.ratios import Ratio, Turn, failures, middle, ratio
from tests.bench.rounds import Compared


def lines(name: str, compared: Compared) -> Iterator[str]:
    """A block for each workload: absolute numbers, and mcproxy's ratios to each of the others."""
    yield f"\n{name}"
    ours = compared.turns.get(MCPROXY)
    for proxy, turns in compared.turns.items():
        yield f"  {proxy:<17}{absolute(turns)}{'' if ours in (None, turns) else against(ours, turns)}"
    for proxy, turns in compared.turns.items():
        if failures(turns):
            yield f"  {proxy}: {failures(turns)} answers were wrong or missing, such as: {turns[0].load.sample}"
    for proxy, reason in compared.absent.items():
        yield f"  {proxy} is left out: {reason}"


def absolute(turns: Sequence[Turn]) -> str:
    rate, cost = middle(turns, lambda turn: turn.rate), middle(turns, lambda turn: turn.cost) * 1e6
    p50, p99 = middle(turns, lambda turn: turn.load.p50) * 1e3, middle(turns, lambda turn: turn.load.p99) * 1e3
    busy, memory = middle(turns, lambda turn: turn.busy), turns[-1].memory.proportional / 2**20
    return f"{rate:8.0f}/s {cost:6.0f} us/call {busy:4.0%} busy  p50 {p50:7.2f} p99 {p99:7.2f} ms  {memory:4.0f} MiB"


def against(ours: Sequence[Turn], theirs: Sequence[Turn]) -> str:
    rate = ratio([turn.rate for turn in ours], [turn.rate for turn in theirs])
    cost = ratio([turn.cost for turn in ours], [turn.cost for turn in theirs])
    return f"  mcproxy: rate {shown(rate)}, cost {shown(cost)}"


def shown(ratio: Ratio | None) -> str:
    """The median, with the lowest and the highest."""
    return "-" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
