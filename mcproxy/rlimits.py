"""Raise the limit on open files (RLIMIT_NOFILE) to the hard limit; remember the old one for child processes.

Each client takes a descriptor, and systems start processes with 1,024 for the sake of select(2), which can count no
further. A child may use select(2): it gets the limit that this process was started with.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

if sys.platform != "win32":
    import resource

AT_START: Final = 0 if sys.platform == "win32" else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""The soft limit that this process was started with."""


def hard_limit() -> int:
    """The most files that this process may ever have open; 0 where the system has no such limit."""
    return 0 if sys.platform == "win32" else resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def raise_limit() -> None:
    """Raises the soft limit to the hard one; does nothing where the system does not allow it."""
    if sys.platform == "win32":
        return  # has no such limit on sockets
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
