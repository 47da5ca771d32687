"""What a process and its children use, as Linux counts it in /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.processes import command_line, descendants

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PEER: Final = "benchmarks.child"
"""A child that is an upstream is no part of the proxy."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    resident: int
    proportional: int
    """What is shared with others counts by halves, thirds, and so on."""


def processor_seconds(pid: int) -> float:
    """User and system time of a process, of its children, and of those of them that have ended."""
    return sum(_ticks(each) for each in _family(pid)) / _TICKS


def memory(pid: int) -> Memory:
    parts = [_rollup(each) for each in _family(pid)]
    return Memory(sum(part.resident for part in parts), sum(part.proportional for part in parts))


def descriptors(pid: int) -> int:
    """Open files and sockets of one process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def parse_ticks(stat: str) -> int:
    """utime, stime, cutime and cstime of a line of /proc/PID/stat, together (proc(5))."""
    # The name in parentheses may hold anything.
    return sum(map(int, stat.rpartition(")")[2].split()[11:15]))


def parse_rollup(text: str) -> Memory:
    """Of /proc/PID/smaps_rollup."""
    sizes = {name: rest for name, _, rest in (line.partition(":") for line in text.splitlines())}
    return Memory(*(int(sizes[name].split()[0]) * 1024 for name in ("Rss", "Pss")))


def _family(pid: int) -> Iterator[int]:
    yield pid
    yield from (child for child in descendants(pid) if _PEER not in command_line(child))


def _ticks(pid: int) -> int:
    with suppress(OSError):
        return parse_ticks(Path(f"/proc/{pid}/stat").read_text())
    return 0


def _rollup(pid: int) -> Memory:
    with suppress(OSError):
        return parse_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text())
    return Memory(0, 0)
