"""Processes below a process, and whether they have ended. Only Linux tells; elsewhere none is found."""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37
GRACE = 60.0
"""Seconds that processes on their way out may take, unless `--grace` says otherwise."""
FORKED_IN: dict[int, str] = {}
"""The test in which a process was forked (`tests.forking`): the system shows the environment of its origin."""


def adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends, so that `descendants` goes on finding it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def adopts_orphans() -> bool:
    found = ctypes.c_int()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return bool(found.value)


def give_children_default_signals() -> None:
    """See to it that programs started from here take each signal's default action, and block none.

    `nohup`, and the background of a script, leave signals ignored, which programs inherit. One that has a handler they
    do not: it gets one that does nothing, so that this process goes on ignoring it. Python's own two, SIGPIPE and
    SIGXFSZ, `subprocess` restores by itself.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)


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


def test_of(pid: int) -> str:
    """The test in which a process was started, as pytest told its environment."""
    if pid in FORKED_IN:
        return FORKED_IN[pid]
    with suppress(OSError):
        if found := re.search(rb"(?:^|\0)PYTEST_CURRENT_TEST=([^\0]*)", Path(f"/proc/{pid}/environ").read_bytes()):
            return found[1].decode(errors="replace")
    return "a test that is not known"


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


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_descendants(grace: float) -> list[str]:
    """Kill what still runs below this process after `grace` seconds; say of each what it was and who started it."""
    left = {pid: f"{command_line(pid)} (started in {test_of(pid)})" for pid in descendants(os.getpid())}
    alive = survivors(left, grace)
    kill(alive)
    return [left[pid] for pid in alive]
