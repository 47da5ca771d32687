"""Counts the work of one thread by the functions it calls: the same on any machine, however loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def functions_called(work: Callable[[], object], *, of: Callable[..., object] | None = None) -> int:
    """How many functions `work` calls, those written in C among them, from Python; or how often one function, `of`."""
    calls, code = 0, getattr(of, "__code__", None)

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        if of is None:
            calls += event in {"call", "c_call"}
        else:
            calls += (event == "call" and frame.f_code is code) or (event == "c_call" and arg is of)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
