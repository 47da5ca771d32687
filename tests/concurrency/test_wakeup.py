"""Tasks that wait for a change."""

from __future__ import annotations

import anyio
import pytest

from mcproxy.concurrency.wakeup import Wakeup
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


async def test_a_notification_wakes_all_waiters_and_none_that_come_later() -> None:
    wakeup, woken = Wakeup(), list[str]()

    async def wait(name: str) -> None:
        await wakeup.wait()
        woken.append(name)

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, "first")
            tasks.start_soon(wait, "second")
            await anyio.wait_all_tasks_blocked()
            wakeup.notify_all()
            tasks.start_soon(wait, "late")
            await anyio.wait_all_tasks_blocked()
            assert sorted(woken) == ["first", "second"]
            wakeup.notify_all()
    assert woken[-1] == "late"
