"""The twin of `mcproxy.service.systemd`."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import anyio
import pytest

from mcproxy.service.systemd import READY, keep_alive, notifier, reloading, watchdog_timeout
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("address", ["{folder}/notify", "@mcproxy-test-{pid}"])
async def test_the_service_manager_is_told_where_it_listens(tmp_path: Path, address: str) -> None:
    address = address.format(folder=tmp_path, pid=os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0"))
        tell = notifier({"NOTIFY_SOCKET": address})
        tell(READY)
        tell(reloading())
        assert manager.recv(100) == b"READY=1"
        assert manager.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/no/such/socket"}])
async def test_without_a_listener_nothing_happens(environ: dict[str, str]) -> None:
    notifier(environ)(READY)


def test_the_watchdog_is_for_this_process_alone() -> None:
    assert watchdog_timeout({"WATCHDOG_USEC": "3000000"}) == 3
    assert watchdog_timeout({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}) == 3
    assert watchdog_timeout({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}) is None
    assert watchdog_timeout({"WATCHDOG_USEC": "0"}) is None
    assert watchdog_timeout({"WATCHDOG_USEC": "soon"}) is None
    assert watchdog_timeout({}) is None


async def test_the_watchdog_hears_twice_in_its_time() -> None:
    told: list[str] = []
    with anyio.fail_after(GUARD), anyio.CancelScope() as scope:

        def tell(state: str) -> None:
            told.append(state)
            if len(told) == 3:
                scope.cancel()

        await keep_alive(tell, 0.02)
    assert told == ["WATCHDOG=1"] * 3


async def test_without_a_watchdog_the_service_manager_is_not_told_that_the_process_lives() -> None:
    await keep_alive(lambda state: pytest.fail(state), None)
