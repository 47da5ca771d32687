"""Which signal makes the gateway stop, reload or change its log level. Carries out none of it.

SIGTERM and SIGINT stop. SIGHUP reloads, except when the terminal on which the gateway was started has closed: then it
stops, as it does where nothing can be reloaded. SIGUSR1 switches debug logs on and off. Signals that were ignored at
the start, as under `nohup`, stay ignored.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from enum import Enum
from typing import Final

import anyio
import structlog

log = structlog.get_logger()

TERMINAL: Final = "/dev/tty"
"""The controlling terminal of this process; it cannot be opened where there is none."""

_SIGNALS: Final = {number.name: number for number in signal.Signals}
_HANGUP: Final = _SIGNALS.get("SIGHUP")
_VERBOSE: Final = _SIGNALS.get("SIGUSR1")


class SignalAction(Enum):
    """The gateway's action upon a signal."""

    STOP = "drain and exit"
    RELOAD = "read the configuration again"
    VERBOSE = "switch debug logs on or off"


async def handle_signals(act: Callable[[SignalAction], None], *, reloads: bool) -> None:
    """Passes on the action of each signal until STOP; after that, a SIGTERM or SIGINT kills at once."""
    number = await _stop_signal(act, reloads=reloads, on_terminal=has_terminal())
    # A closing terminal and then its shell both send SIGHUP; a late reload request must not kill.
    for late in (_HANGUP, _VERBOSE):
        if late is not None:
            signal.signal(late, signal.SIG_IGN)
    log.info("stopping", signal=number.name)
    act(SignalAction.STOP)


async def _stop_signal(act: Callable[[SignalAction], None], *, reloads: bool, on_terminal: bool) -> signal.Signals:
    """The first signal that means STOP; the actions of others are passed on."""
    with anyio.open_signal_receiver(*_handled()) as signals:
        while True:
            number = await anext(signals)
            action = action_for(number, reloads=reloads and not (on_terminal and not has_terminal()))
            if action is SignalAction.STOP:
                return number
            act(action)


def action_for(number: signal.Signals, *, reloads: bool) -> SignalAction:
    """The action for a signal; without `reloads`, a hang-up stops the gateway too."""
    if number == _VERBOSE:
        return SignalAction.VERBOSE
    return SignalAction.RELOAD if number == _HANGUP and reloads else SignalAction.STOP


def has_terminal(path: str = TERMINAL) -> bool:
    """Whether the process has a terminal that still opens."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _handled() -> list[signal.Signals]:
    named = (signal.SIGTERM, signal.SIGINT, _HANGUP, _VERBOSE)
    return [number for number in named if number is not None and signal.getsignal(number) is not signal.SIG_IGN]
