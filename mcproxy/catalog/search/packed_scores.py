"""Score all tools at once: each term is one integer, which has a lane of 16 bits for each tool.

A lane holds the term's impact on the score of its tool, in whole units: a thousandth of the greatest impact of all. The
sum of a query's terms then holds the scores of all tools, made by one addition for each term. Knows no words.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import accumulate, count
from math import ceil
from operator import add
from typing import Final, NamedTuple

Postings = Mapping[int, float]
"""A term's impact on the score of each tool that has it, by index; above 0."""

MAX_TERMS: Final = 64
_MAX_LANE: Final = 1000
"""Units of the greatest impact: `MAX_TERMS` times that fits into a lane."""
_LEVELS: Final = tuple(bytes(range(level)) for level in (128, 64, 32, 16, 8, 4, 2, 1))
"""For each level, the bytes below it."""
_LOWER, _UPPER = (0, 1) if sys.byteorder == "little" else (1, 0)
"""Where the two bytes of a lane are."""

_MARK: Final = b"\1"
_MARKED_FROM: Final = tuple(bytes(least) + _MARK * (256 - least) for least in range(256))
"""For each byte, the table that turns it and those above it into `_MARK`."""


class PackedTerm(NamedTuple):
    """One term's impact on the scores of all tools."""

    lanes: int
    most: int
    """The greatest impact."""


def packed(postings: Postings, tools: int, greatest: float) -> PackedTerm:
    """A term of an index of so many tools, where no impact is greater than `greatest`."""
    lanes, units = array("H", bytes(2 * tools)), _MAX_LANE / greatest
    for position, impact in postings.items():
        # Rounded up, so that no tool that has the term counts as one that has not.
        lanes[position] = min(_MAX_LANE, ceil(impact * units))
    return PackedTerm(int.from_bytes(lanes.tobytes(), sys.byteorder), max(lanes, default=0))


def best(terms: Sequence[PackedTerm], tools: int, limit: int) -> list[int]:
    """The positions of the best `limit` tools, the best first and of equals the first; those with no term are none.

    There are one to `MAX_TERMS` terms, of an index of so many tools.
    """
    lanes, most = zip(*terms, strict=True)
    # Moved up, so that the upper byte of each lane has the most of it: 128 or more for a tool with all of `most`.
    moved = reduce(add, lanes) << (16 - sum(most).bit_length())
    scores = moved.to_bytes(2 * tools, sys.byteorder)
    upper = scores[_UPPER::2]
    least = _kth(upper, limit)
    if least:
        positions = _at_least(upper, least)
    else:
        # Too few have an upper byte. They are among the best, and of the others those with the greatest lower ones.
        lower = scores[_LOWER::2]
        positions = sorted({*_at_least(upper, 1), *_at_least(lower, max(1, _kth(lower, limit)))})
    # A sort keeps the order that equals had. `heapq` takes thrice the time.
    return sorted(positions, key=array("H", scores).__getitem__, reverse=True)[:limit]


def _kth(values: bytes, place: int) -> int:
    """The value at rank `place`; 0 if there are fewer values."""
    for below in _LEVELS:
        kept = values.translate(None, below)
        if len(kept) >= place:
            return sorted(kept)[-place]
    return 0


def _at_least(values: bytes, least: int) -> list[int]:
    """The indexes of the bytes that are at least that large, ascending."""
    others = values.translate(_MARKED_FROM[least]).split(_MARK)
    return list(map(add, accumulate(map(len, others[:-1])), count()))
