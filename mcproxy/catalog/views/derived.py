"""Results of a function for each entry of a list, in turns: none is worked out anew that the list before had too.

An upstream whose list changes in one entry of ten thousand costs one entry's work, and holds up nothing if all changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

import msgspec

from mcproxy.concurrency.turns import Steps

S = TypeVar("S")
R = TypeVar("R")

SLICE: Final = 10_000
"""Work after which other tasks get a turn, about a millisecond: as much as to look up so many results."""
WORKED_OUT: Final = 100
"""The work for a result that is not known yet."""
BYTES: Final = 16
"""Bytes of an entry that add one to that."""


class Derived(msgspec.Struct, Generic[R], frozen=True):
    """Entries, and the result for each. The results may be used for the very same entries again."""

    entries: tuple[object, ...] = ()
    results: tuple[R, ...] = ()


def deriving(
    entries: Iterable[S],
    function: Callable[[S], R],
    earlier: Derived[R] | None = None,
    size: Callable[[S], int] = lambda entry: 0,
) -> Steps[Derived[R]]:
    """`function` of each entry, or what is in `earlier` for the same object. `size` is that of an entry, in bytes."""
    known = {} if earlier is None else dict(zip(map(id, earlier.entries), earlier.results, strict=True))
    found, results, work = tuple(entries), list[R](), 0
    for entry in found:
        if id(entry) in known:
            results.append(known[id(entry)])
            work += 1
        else:
            results.append(function(entry))
            work += WORKED_OUT + size(entry) // BYTES
        if work >= SLICE:
            yield
            work = 0
    return Derived(found, tuple(results))
