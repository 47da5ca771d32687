"""The time that a test may take, teardown included: ten minutes, or what its `timeout` mark says.

A test that takes longer ends its process, and all that it started: nothing milder is sure to end it. An exception that
is raised into it an event loop may swallow, or a cleanup that hangs hold up; and pytest-timeout stops its clock at the
first failure, so that a teardown may then hang for ever. Under xdist the test fails, and a new worker takes the next.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import threading
from collections.abc import Iterator
from typing import Any, TextIO

import pytest

from tests.processes import descendants, kill

SECONDS = 600.0
GUARD = 120.0
"""Seconds that a step of a test may take, so that its failure shows where it hangs. How fast the machine is must not
matter: a deadline that is itself under test is a setting, a clock or a number of the test's own."""
FAILED = 1


class Timeouts:
    """A pytest plugin. Made while nothing is captured, it writes to the stderr that the user sees."""

    def __init__(self) -> None:
        self._stderr = os.fdopen(os.dup(2), "w")
        self._timer: threading.Timer | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._timer = threading.Timer(seconds_of(item), self._expire, [item.nodeid])
        self._timer.daemon = True
        self._timer.start()
        try:
            return (yield)
        finally:
            self._timer.cancel()

    def pytest_enter_pdb(self) -> None:
        """Gives whoever debugs all the time in the world."""
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self, test: str) -> None:
        try:
            print(f"\n+++ {test} takes too long; its process ends +++", file=self._stderr, flush=True)
            faulthandler.dump_traceback(self._stderr)
            dump_tasks(self._stderr)
            self._stderr.flush()
        finally:
            kill(descendants(os.getpid()))
            os._exit(FAILED)


def seconds_of(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return SECONDS if mark is None else float(mark.args[0])


def dump_tasks(file: TextIO) -> None:
    """Where each asyncio task of this process waits, innermost last."""
    for task in [each for each in gc.get_objects() if isinstance(each, asyncio.Task)]:
        if not task.done():
            print(f"{task.get_name()}:", *frames(task.get_coro()), sep="\n  ", file=file)


def frames(awaited: Any) -> Iterator[str]:
    """File, line and function of a suspended coroutine or generator, and of what it awaits in turn."""
    while awaited is not None:
        frame, waits_for = next(
            (
                (getattr(awaited, f"{kind}_frame"), getattr(awaited, inner))
                for kind, inner in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await"))
                if hasattr(awaited, f"{kind}_frame")
            ),
            (None, None),
        )
        if frame is not None:
            yield f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        awaited = waits_for
