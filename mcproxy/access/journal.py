"""Lines at the end of a file that rotates: all of what is appended at once, or nothing of it. Blocks its thread.

The file is opened for each append, so that one that was moved away or deleted is made anew.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
"""Not to wait for who reads a pipe."""


@dataclass(frozen=True, slots=True)
class Journal:
    path: Path
    max_bytes: int | None
    """When to begin a new file; None for never."""
    keep: int
    """Full files that are kept."""

    def append(self, data: bytes) -> None:
        """Raises OSError."""
        if self._is_full(len(data)):
            self._rotate()
        descriptor = os.open(self.path, _FLAGS, 0o600)
        try:
            _write_whole(descriptor, data)
        finally:
            os.close(descriptor)

    def _is_full(self, more: int) -> bool:
        if self.max_bytes is None:
            return False
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size > 0 and found.st_size + more > self.max_bytes

    def _rotate(self) -> None:
        for number in range(self.keep - 1, 0, -1):
            if self._old(number).exists():
                self._old(number).replace(self._old(number + 1))
        self.path.replace(self._old(1))

    def _old(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def _write_whole(descriptor: int, data: bytes) -> None:
    """Half of what is written would be no line: where the rest does not fit, it is taken back."""
    found = os.fstat(descriptor)
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError:
        if written and stat.S_ISREG(found.st_mode):
            os.ftruncate(descriptor, found.st_size)
        raise
