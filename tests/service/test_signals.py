"""The twin of `mcproxy.service.signals`: what signals mean. That they are heeded is for `tests/cli`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mcproxy.service.signals import SignalAction, action_for, has_terminal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("reloads", [True, False])
def test_to_end_is_to_end(number: signal.Signals, reloads: bool) -> None:
    assert action_for(number, reloads=reloads) is SignalAction.STOP


def test_a_hang_up_reloads_what_can_be_and_ends_the_rest() -> None:
    assert action_for(signal.SIGHUP, reloads=True) is SignalAction.RELOAD
    assert action_for(signal.SIGHUP, reloads=False) is SignalAction.STOP


def test_more_logs_are_a_signal_away() -> None:
    assert action_for(signal.SIGUSR1, reloads=False) is SignalAction.VERBOSE


def test_a_terminal_is_there_if_it_can_be_opened(tmp_path: Path) -> None:
    assert not has_terminal(str(tmp_path / "gone"))
    (tmp_path / "tty").touch()
    assert has_terminal(str(tmp_path / "tty"))
