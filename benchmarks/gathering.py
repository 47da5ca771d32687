"""A crowd of listening clients (`crowd`), as a process of its own beside the load."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.running import ROOT, Cores, pinned
from mcproxy.protocol.eras import Era


class Scattered(Exception):
    """A crowd that did not come together, or left; its own words are on stderr."""


class Gathered:
    """Clients that all listen."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def expect(self, word: str) -> str:
        """What follows `word` in its next line. Raises Scattered."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if not said.startswith(word):
            raise Scattered(f"the crowd said {said!r} instead of {word!r}")
        return said.removeprefix(word)

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()


@contextmanager
def gathered(
    port: int, cores: Cores, sessions: int, era: Era = Era.HANDSHAKE, *, upstream: int = 0, updates: int = 0
) -> Iterator[Gathered]:
    """So many clients of a gateway; with `updates`, its upstream announces that many at the word `go`."""
    arguments = [port, era.value, sessions, upstream, updates]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.crowd", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=pinned(cores.others),
    )
    try:
        crowd = Gathered(process)
        crowd.expect("ready")
        yield crowd
    finally:
        process.communicate()
