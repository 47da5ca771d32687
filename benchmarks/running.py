"""The programs of the benchmark: each on its own cores, ended with the block that started it."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.processes import descendants

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = Path(tempfile.gettempdir()) / "mcproxy-bench.lock"
START: Final = 60.0
"""Seconds for a program to listen."""
STOP: Final = 15.0
"""Seconds for it to end when told to."""
PAUSE: Final = 0.005
RIGHT_OF_WAY: Final = -10
"""Niceness, where we may: what else runs on this machine disturbs less."""


def end_on_sigterm() -> None:
    """Lets SIGTERM end this process as an exception does, so that what it started ends too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextmanager
def alone() -> Iterator[None]:
    """Waits until no other benchmark runs on this machine, and keeps others waiting meanwhile."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class Cores:
    proxy: frozenset[int]
    others: frozenset[int]
    """For the load and the upstream."""


class NotStarted(Exception):
    """A program that ended, or did not listen in time; the text has its last words."""


def split(available: set[int]) -> Cores:
    """One core for the proxy. Raises ValueError where there is only one."""
    if len(available) < 2:
        raise ValueError("the benchmark needs two cores: one for the proxy, another for load and upstream")
    return Cores(frozenset({max(available)}), frozenset(available - {max(available)}))


def pinned(cores: frozenset[int]) -> Callable[[], None]:
    """For `preexec_fn`: the cores, as many file descriptors as the system allows, and the right of way."""

    def prepare() -> None:
        os.sched_setaffinity(0, cores)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, RIGHT_OF_WAY)

    return prepare


@contextmanager
def running(
    command: Sequence[str], cores: frozenset[int], port: int, log: Path, more: Mapping[str, str] | None = None
) -> Iterator[int]:
    """The process id of a program that listens on `port`. Raises NotStarted."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            # From bytecode, as an installed program.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **(more or {})},
            preexec_fn=pinned(cores),
        )
        try:
            _wait(process, port, log)
            yield process.pid
        finally:
            _stop(process)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as knock:
            if knock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(PAUSE)
    raise NotStarted(f"{process.args!r}\n{log.read_text(errors='replace')[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends it, and what it may have left behind."""
    with ExitStack() as handles:
        family = [handles.enter_context(_handle(pid)) for pid in descendants(process.pid)]
        process.terminate()
        try:
            process.wait(STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for handle in family:
            _kill(handle)


@contextmanager
def _handle(pid: int) -> Iterator[int | None]:
    """Stands for this process even when another has got its number."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _kill(handle: int | None) -> None:
    if handle is not None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
