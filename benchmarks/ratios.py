"""The arithmetic: what the rounds of two proxies say of each other. Pure.

Each round's pair gives one ratio; the median of them is what counts, the lowest and highest tell how sure it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.load import Load
from benchmarks.usage import Memory


@dataclass(frozen=True, slots=True)
class Turn:
    """What one proxy did in one round."""

    load: Load
    processor: float
    """Seconds of processor time."""
    memory: Memory

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.load.answers / self.load.seconds

    @property
    def cost(self) -> float:
        """Processor seconds per answer."""
        return self.processor / self.load.answers if self.load.answers else 0.0

    @property
    def busy(self) -> float:
        """The share of its core that the proxy used."""
        return self.processor / self.load.seconds


@dataclass(frozen=True, slots=True)
class Ratio:
    median: float
    low: float
    high: float


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio | None:
    """Round by round; None where nothing can be said, as of a thing that cost less than can be measured."""
    each = [our / their for our, their in zip(ours, theirs, strict=True) if their > 0]
    return Ratio(median(each), min(each), max(each)) if each else None


def added(through: Sequence[float], direct: Sequence[float]) -> list[float]:
    """What is on top of the direct way, round by round; never less than nothing."""
    return [max(0.0, whole - least) for whole, least in zip(through, direct, strict=True)]


def middle(turns: Sequence[Turn], of: Callable[[Turn], float]) -> float:
    return median(map(of, turns))


def failures(turns: Sequence[Turn]) -> int:
    return sum(turn.load.failures for turn in turns)
