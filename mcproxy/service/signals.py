"""What signals mean to a gateway that serves: to end, to read its configuration again, to log more. Carries out none.

SIGTERM and SIGINT end. SIGHUP reloads, unless it says that the terminal is gone on which the gateway was started: that
ends it, as does any SIGHUP where nothing can be reloaded. SIGUSR1 turns debug logs on, and off again. What whoever
started the gateway had ignored, as `nohup` does, stays ignored.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import anyio
import structlog

log = structlog.get_logger()

TERMINAL: Final = "/dev/tty"
"""The terminal that controls this process, whatever it is called; there is none where this cannot be opened."""

_OF_UNIX: Final = {number.name: number for number in signal.Signals}
_HANGUP: Final = _OF_UNIX.get("SIGHUP")
_VERBOSE: Final = _OF_UNIX.get("SIGUSR1")


class SignalAction(Enum):
    STOP = auto()
    RELOAD = auto()
    VERBOSE = auto()
    """Log all, or no more than is configured again."""


async def handle_signals(act: Callable[[SignalAction], None], *, reloads: bool) -> None:
    """Hands over what each signal means, until STOP. After that, another one to end does so at once."""
    number = await _last(act, reloads=reloads, on_terminal=has_terminal())
    # A terminal that closes says so, and then its shell does; and a late wish to reload is none to end at once.
    for late in (_HANGUP, _VERBOSE):
        if late is not None:
            signal.signal(late, signal.SIG_IGN)
    log.info("stopping", signal=number.name)
    act(SignalAction.STOP)


async def _last(act: Callable[[SignalAction], None], *, reloads: bool, on_terminal: bool) -> signal.Signals:
    """The signal that means to stop; what others mean is handed over."""
    with anyio.open_signal_receiver(*_heeded()) as signals:
        while True:
            number = await anext(signals)
            order = action_for(number, reloads=reloads and not (on_terminal and not has_terminal()))
            if order is SignalAction.STOP:
                return number
            act(order)


def action_for(number: signal.Signals, *, reloads: bool) -> SignalAction:
    if number == _VERBOSE:
        return SignalAction.VERBOSE
    return SignalAction.RELOAD if number == _HANGUP and reloads else SignalAction.STOP


def has_terminal(path: str = TERMINAL) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _heeded() -> list[signal.Signals]:
    named = (signal.SIGTERM, signal.SIGINT, _HANGUP, _VERBOSE)
    return [number for number in named if number is not None and signal.getsignal(number) is not signal.SIG_IGN]
