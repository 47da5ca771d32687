"""Counts the work of one thread by the functions it calls: the same on any machine, however loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def functions_called(work: Callable[[], object], *, of: object = None) -> int:
    """How many functions `work` calls, those written in C among them, from Python; or how often the one in C, `of`."""
    calls = 0

    def count(_frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"} if of is None else event == "c_call" and arg is of

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
