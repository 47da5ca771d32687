"""Load from `wrk`, which one core of ours does not slow down: how many answers, how fast, and how many were wrong."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.asking import NUMBER
from benchmarks.running import pinned

SCRIPT: Final = Path(__file__).with_name("load.lua")
TIMEOUT: Final = 20
"""Seconds for one answer."""
_RESULT: Final = re.compile(r'^RESULT (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) "(.*)"', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Plan:
    port: int
    requests: Sequence[str]
    """As they go over the wire, in turn; NUMBER stands where each has its own."""
    mark: str
    """Is in every right answer."""
    at_least: int
    """Bytes of every right answer."""
    connections: int


@dataclass(frozen=True, slots=True)
class Load:
    answers: int
    seconds: float
    p50: float
    """Seconds."""
    p99: float
    """Seconds."""
    failures: int
    """Other statuses than 200, other content, lost connections and time-outs."""
    sample: str
    """What one failure looked like."""


class BrokenLoad(Exception):
    """wrk did not say how it went."""


def lua(plan: Plan) -> str:
    """The plan as the script reads it."""
    requests = ",\n".join("{" + ",".join(map(quoted, text.split(NUMBER))) + "}" for text in plan.requests)
    return f"return {{mark = {quoted(plan.mark)}, at_least = {plan.at_least}, requests = {{\n{requests}\n}}}}\n"


def quoted(text: str) -> str:
    """A Lua string. Whatever is no plain character is written by its code."""
    return '"' + re.sub(rb"[^ !#-\[\]-~]", lambda found: b"\\%03d" % found[0][0], text.encode()).decode() + '"'


def parse(output: str) -> Load:
    """What wrk printed. Raises BrokenLoad."""
    found = _RESULT.search(output)
    if found is None:
        raise BrokenLoad(f"wrk gave no result:\n{output}")
    answers, duration, p50, p99, refused, wrong, lost = map(int, found.groups()[:7])
    return Load(answers, duration / 1e6, p50 / 1e6, p99 / 1e6, refused + wrong + lost, found[8])


def run(plan: Plan, seconds: float, folder: Path, cores: frozenset[int]) -> Load:
    file = folder / "plan.lua"
    file.write_text(lua(plan))
    command = ["wrk", "-t1", f"-c{plan.connections}", f"-d{seconds:.0f}s", f"--timeout={TIMEOUT}s", "--latency"]
    url = f"http://127.0.0.1:{plan.port}/mcp"
    done = subprocess.run(
        [*command, "-s", str(SCRIPT), url, "--", str(file)],
        capture_output=True,
        text=True,
        timeout=seconds + 3 * TIMEOUT,
        preexec_fn=pinned(cores),
        check=False,
    )
    return parse(done.stdout + done.stderr)
