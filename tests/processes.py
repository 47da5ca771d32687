"""What runs below a process, and whether it has ended. Linux alone tells: elsewhere nothing is found."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

PR_SET_CHILD_SUBREAPER = 36
GRACE = 5.0
"""Seconds that processes on their way out may take."""


def descendants(ancestor: int) -> list[int]:
    """Every live process below `ancestor`."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in parentheses may hold anything; state and parent follow it.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found: list[int] = []
    fresh = [ancestor]
    while fresh:
        fresh = [child for parent in fresh for child in children.get(parent, [])]
        found += fresh
    return found


def command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def survivors(pids: Iterable[int], within: float) -> list[int]:
    """Those of `pids` that have not ended within so many seconds, all together."""
    deadline = time.monotonic() + within
    return [pid for pid in pids if not _ended(pid, deadline)]


def _ended(pid: int, deadline: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0])
    finally:
        os.close(descriptor)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """What the tests started, and what that started, has ended when they have.

    Each worker adopts its orphans, so that a grandchild whose parent was killed is seen too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    left = {pid: command_line(pid) for pid in descendants(os.getpid())}
    alive = survivors(left, GRACE)
    for pid in alive:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not alive, f"left running: {[left[pid] for pid in alive]}"
