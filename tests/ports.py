"""TCP ports for programs that have to be told where to listen, and for addresses at which nothing may listen.

They lie below those that a system gives to whoever asks for any port, as each client does that connects; and each test
process has some to itself. So nothing else takes a port between its choice and its use, nor while a test that stopped
its server is about to start it again.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

BLOCKS: Final = range(10_000, 16_000, 100)
"""The first port of each block. Linux gives out ports from 32768 on by itself, gVisor from 16000 on."""
MOST: Final = 4
"""Blocks that a process takes; then it gives out their ports again: those that had them are long over."""


class Ports:
    """Iterates for ever over ports of 127.0.0.1 that nothing listens on, and that no other process is given."""

    def __init__(self) -> None:
        self._held: list[IO[bytes]] = []
        """Files locked until this process ends, one for each of its blocks."""
        self._ports = self._all()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(port for port in self._ports if _is_free(port))

    def _all(self) -> Iterator[int]:
        taken: list[int] = []
        for first in self._own_blocks():
            taken.append(first)
            yield from range(first, first + BLOCKS.step)
        assert taken, "other test processes hold all blocks of ports"
        while True:
            for first in taken:
                yield from range(first, first + BLOCKS.step)

    def _own_blocks(self) -> Iterator[int]:
        folder = Path(tempfile.gettempdir(), f"mcproxy-test-ports-{os.getuid()}")
        folder.mkdir(exist_ok=True)
        for first in BLOCKS:
            file = (folder / str(first)).open("wb")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                continue
            self._held.append(file)
            yield first
            if len(self._held) == MOST:
                return


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that were closed may linger
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_own: Final = Ports()


def free_port() -> int:
    """A port that nothing listens on, and that no other test is given while this one runs."""
    return next(_own)
