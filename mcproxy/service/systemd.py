"""What systemd is told of the service, where it asks (sd_notify(3)). Speaks the protocol itself; needs no library.

Waits for nobody: a message that cannot be delivered is lost.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import anyio

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"

Notify = Callable[[str], None]
"""Takes assignments, one a line: `READY=1`."""


def not_notified(state: str) -> None:
    """Where no service manager listens."""


def notifier(environ: Mapping[str, str] = os.environ) -> Notify:
    """Tells the service manager; nobody, where there is none."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return not_notified
    # An abstract socket is written with an @ for its first byte, a zero.
    peer = f"\0{address[1:]}" if address.startswith("@") else address

    def tell(state: str) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as datagrams:
            datagrams.sendto(state.encode(), peer)

    return tell


def reloading() -> str:
    """`Type=notify-reload` wants to know since when."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"


def watchdog_timeout(environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds after which this process is taken for dead if it says nothing; None for ever."""
    limit, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not limit.isdecimal() or int(limit) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(limit) / 1_000_000


async def keep_alive(tell: Notify, seconds: float | None) -> None:
    """Says twice in `seconds` that the event loop runs, until cancelled."""
    while seconds is not None:
        tell("WATCHDOG=1")
        await anyio.sleep(seconds / 2)
