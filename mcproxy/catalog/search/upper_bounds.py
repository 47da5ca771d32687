"""Leave tools out of a search without scoring each: those that cannot be among the best, by a bound of their score.

A term's impacts, in whole units and rounded up, are packed into one integer that has a lane of 16 bits for each tool.
The sum of the integers of a query's terms then holds an upper bound of the score of every tool, made by one addition
for each term. Knows no words, and never leaves out a tool that is among the best.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from itertools import accumulate, count
from math import ceil
from operator import add
from typing import Final, NamedTuple

Postings = Mapping[int, float]
"""A term's impact on the score of each tool that has it, by position; greater than nought."""

MAX_TERMS: Final = 64
_MAX_LANE: Final = 1000
"""Units of the greatest impact: `MAX_TERMS` times that, and one each for rounding, fit into a lane."""
_MAX_PACKED: Final = 1024
"""Terms that are kept packed, two bytes for each tool; those that were asked for."""
_LEVELS: Final = tuple(bytes(range(level)) for level in (128, 64, 32, 16, 8, 4, 2, 1))
"""For each level, the bytes below it."""

_MARK: Final = b"\1"
_MARKED_FROM: Final = tuple(bytes(least) + _MARK * (256 - least) for least in range(256))
"""For each byte, the table that turns it and those above it into `_MARK`."""


class PackedTerm(NamedTuple):
    lanes: int
    most: int
    """The greatest of them."""


class UpperBounds:
    def __init__(self, tools: int, greatest: float) -> None:
        """For so many tools; no impact is greater than `greatest`."""
        self._tools = tools
        self._units = _MAX_LANE / greatest
        self._packed: dict[str, PackedTerm] = {}

    def promising(self, terms: Mapping[str, Postings], limit: int) -> list[int] | None:
        """Positions, in order, of tools of which the best `limit` are a part; None where that may be any with a term.

        Equals of the last of the best are among them. There may be at most `MAX_TERMS` terms.
        """
        lanes, most = zip(*map(self._pack, terms.items()), strict=True)
        bits = sum(most).bit_length()
        # Moved up, so that the upper byte of each lane has the most of it: 128 or more for a tool with all of `most`.
        bounds = sum(lanes) << (16 - bits)
        coarse = bounds.to_bytes(2 * self._tools, "little")[1::2]
        least = _kth(coarse, limit) - (((len(most) + 1) << 8 >> bits) + 1)
        if least < 1:
            return None
        others = coarse.translate(_MARKED_FROM[least]).split(_MARK)
        return list(map(add, accumulate(map(len, others[:-1])), count()))

    def _pack(self, given: tuple[str, Postings]) -> PackedTerm:
        term, postings = given
        packed = self._packed.get(term)
        if packed is None:
            lanes, units = array("H", bytes(2 * self._tools)), self._units
            for position, impact in postings.items():
                lanes[position] = ceil(impact * units)
            if sys.byteorder == "big":
                lanes.byteswap()
            packed = PackedTerm(int.from_bytes(lanes.tobytes(), "little"), ceil(max(postings.values()) * units))
            if len(self._packed) >= _MAX_PACKED:
                del self._packed[next(iter(self._packed))]
            self._packed[term] = packed
        return packed


def _kth(values: bytes, place: int) -> int:
    """The greatest value but `place` - 1; 0 where there are not that many above it."""
    for below in _LEVELS:
        kept = values.translate(None, below)
        if len(kept) >= place:
            return sorted(kept)[-place]
    return 0
