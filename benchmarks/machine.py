"""On what a run was made: the facts without which its numbers mean nothing."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.running import ROOT

PEERS: Final = Path(__file__).with_name("peers")
_COMMANDS: Final = {
    "nginx": ["/usr/sbin/nginx", "-v"],
    "wrk": ["wrk", "-v"],
    "node": ["node", "--version"],
}
_VERSION: Final = re.compile(r"\d+\.\d+[\w.+-]*")


@dataclass(frozen=True, slots=True)
class Machine:
    day: str
    commit: str
    processor: str
    cores: int
    memory: int
    """Bytes."""
    system: str
    load_before: float
    """The load average of the minute before: what else ran."""
    versions: dict[str, str]


def this_machine() -> Machine:
    return Machine(
        day=datetime.now(UTC).date().isoformat(),
        commit=_commit(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        load_before=os.getloadavg()[0],
        versions=dict(_versions()),
    )


def _commit() -> str:
    found = _output(["git", "describe", "--always", "--dirty", "--exclude", "*"]).strip()
    return found or "unknown"


def _processor() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def _versions() -> Iterator[tuple[str, str]]:
    yield "Python", f"{platform.python_version()} ({_linkage()})"
    yield from ((package, version(package)) for package in ("aiohttp", "uvloop", "msgspec"))
    for name, command in _COMMANDS.items():
        found = _VERSION.search(_output(command))
        yield name, found[0] if found else "absent"
    for file in sorted(PEERS.glob("*.txt")):
        yield f"{file.stem} (PyPI)", file.read_text().strip().partition("==")[2]
    for file in sorted(PEERS.glob("*.module")):
        yield f"{file.stem} (Go)", file.read_text().strip().partition("@")[2]
    for name, number in re.findall(r'"([\w-]+)": "(\d[\w.]+)"', (PEERS / "package.json").read_text()):
        yield f"{name} (npm)", number


def _linkage() -> str:
    """How this Python has its interpreter. Through a shared library, calls inside it cost more."""
    mapped = Path("/proc/self/maps").read_text()
    return "shared libpython" if "/libpython" in mapped else "libpython linked in"


def _output(command: list[str]) -> str:
    """What a command prints anywhere; nothing where it is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=10, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout + done.stderr if done.returncode in (0, 1) else ""
