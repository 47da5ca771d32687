"""Makes the C library keep some freed memory for the next large message (mallopt(3), glibc).

Otherwise it returns the memory of each message of a megabyte to the system, which fills the pages anew for the next:
half of such a call's processor time. Operators' settings in the environment take precedence. Does nothing elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

KEPT: Final = 32 * 1024 * 1024
"""Bytes of free memory that are kept at the end of the heap."""
LARGEST: Final = 32 * 1024 * 1024
"""Bytes above which memory has pages of its own, which are returned at once."""

Mallopt = Callable[[int, int], int]
"""mallopt(3): sets a parameter of malloc to a value; 0 where it cannot."""


class _Parameter(NamedTuple):
    number: int
    """In malloc.h."""
    variable: str
    """Of the environment, that sets it."""
    tunable: str
    """In GLIBC_TUNABLES."""
    value: int


_PARAMETERS: Final = (
    _Parameter(-1, "MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold", KEPT),
    # To set either keeps glibc from adapting both to what was freed last.
    _Parameter(-3, "MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold", LARGEST),
)


def keep_freed_memory(mallopt: Mallopt | None, environ: Mapping[str, str] = os.environ) -> None:
    """Sets both limits, unless `environ` sets either."""
    tunables = environ.get("GLIBC_TUNABLES", "")
    if mallopt is None or any(each.variable in environ or each.tunable in tunables for each in _PARAMETERS):
        return
    for each in _PARAMETERS:
        mallopt(each.number, each.value)


def c_mallopt() -> Mallopt | None:
    """The C library's own; None where it has none, or this Python cannot call it."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        found: Mallopt | None = getattr(ctypes.CDLL(None), "mallopt", None)
    except (ImportError, OSError):  # built without libffi, or linked statically
        return None
    return found
