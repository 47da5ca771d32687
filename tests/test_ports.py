"""The twin of `tests.ports`."""

from __future__ import annotations

import socket
from itertools import islice
from pathlib import Path

import pytest

from tests.ports import BLOCKS, MOST, Ports


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Ports, Ports]:
    """As two processes would have them; others that run now hold none of their blocks."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Ports(), Ports()


def test_no_port_is_given_to_two(processes: tuple[Ports, Ports]) -> None:
    one, other = (set(islice(ports, MOST * BLOCKS.step // 2)) for ports in processes)
    assert not one & other
    assert all(port in range(BLOCKS.start, BLOCKS.stop) for port in one | other)


def test_a_port_on_which_something_listens_is_not_given(processes: tuple[Ports, Ports]) -> None:
    one = processes[0]
    taken = next(one)
    with socket.create_server(("127.0.0.1", taken)):
        assert taken not in set(islice(one, MOST * BLOCKS.step))


def test_ports_are_given_again_when_there_are_no_others(processes: tuple[Ports, Ports]) -> None:
    given = list(islice(processes[0], 2 * MOST * BLOCKS.step))
    assert len(set(given)) < len(given)
