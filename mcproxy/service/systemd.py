"""Notify systemd of start, reload, stop and liveness (sd_notify(3)). Implements the protocol; needs no library.

Never waits: a message that cannot be delivered is lost.
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
"""Sends assignments, one per line: `READY=1`."""


def not_notified(state: str) -> None:
    """Discards a notification: no service manager listens."""


def notifier(environ: Mapping[str, str] = os.environ) -> Notify:
    """Notifies the service manager; does nothing where there is none."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return not_notified
    # An abstract socket is written with @ for its first byte, a zero.
    peer = f"\0{address[1:]}" if address.startswith("@") else address

    def notify(state: str) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as datagrams:
            datagrams.sendto(state.encode(), peer)

    return notify


def reloading() -> str:
    """The begin of a reload, with the time that `Type=notify-reload` needs."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"


def watchdog_timeout(environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds without a message after which systemd kills this process; None if there is no watchdog."""
    limit, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not limit.isdecimal() or int(limit) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(limit) / 1_000_000


async def keep_alive(notify: Notify, seconds: float | None) -> None:
    """Reports twice in `seconds` that the event loop runs, until cancelled."""
    while seconds is not None:
        notify("WATCHDOG=1")
        await anyio.sleep(seconds / 2)
