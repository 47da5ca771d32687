"""Append lines to a file that rotates: each append wholly or not at all. Blocks its thread.

The file is opened for each append, so that one that was moved or deleted is made anew. A symbolic link in its place is
refused: through it, anyone who may write to the folder could make the gateway write to any file of its user.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

import msgspec

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
"""With O_NONBLOCK, so as not to wait for the reader of a pipe."""
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
_DEVICES: Final = Path("/dev")
"""The folder where symbolic links are the system's, such as `/dev/stdout`."""


class Journal(msgspec.Struct, frozen=True):
    """A file that lines are appended to, and its rotation."""

    path: Path
    max_bytes: int | None
    """The size at which a new file is begun; None for no limit."""
    keep: int
    """The number of full files that are kept."""

    def append(self, data: bytes) -> None:
        """Raises OSError."""
        if self._is_full(len(data)):
            self._rotate()
        descriptor = self._open()
        try:
            _write_whole(descriptor, data)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            return os.open(self.path, _FLAGS | (_NO_LINK if self.path.parent != _DEVICES else 0), 0o600)
        except OSError as error:
            if error.errno == errno.ELOOP and self.path.is_symlink():
                error.strerror = "it is a symbolic link, which the audit does not follow: name the file itself"
            raise

    def _is_full(self, more: int) -> bool:
        if self.max_bytes is None:
            return False
        try:
            found = self.path.lstat()
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
    """Writes all of a batch; if the rest does not fit, takes back the part that was written."""
    found = os.fstat(descriptor)
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError:
        if written and stat.S_ISREG(found.st_mode):
            os.ftruncate(descriptor, found.st_size)
        raise
