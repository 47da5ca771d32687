"""How many files and sockets this process may have open: as many as it is allowed to have, if it says so.

Each client takes one, and systems begin with 1,024, since who waits with select(2) can count no further. What we start
may be of that kind: it is given what we were.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

if sys.platform != "win32":
    import resource

AT_START: Final = 0 if sys.platform == "win32" else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""The limit that this process was started with."""


def raise_limit() -> None:
    """Up to where only the superuser goes beyond. Where the system counts otherwise, the limit stays as it was."""
    if sys.platform == "win32":
        return  # sockets are not counted there
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
