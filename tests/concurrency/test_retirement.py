"""What a reload replaced is retired, and closed with all that is in use at the end."""

from __future__ import annotations

import anyio
import pytest

from mcproxy.concurrency.retirement import Retirement
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


class Service:
    """Notes what was done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.retired = anyio.Event()

    async def retire(self) -> None:
        self.done.append("retired")
        self.retired.set()

    async def aclose(self) -> None:
        self.done.append("closed")


async def test_what_was_replaced_is_retired_and_what_is_in_use_closed_at_the_end() -> None:
    early, late, used = Service(), Service(), Service()
    retirement = Retirement()
    retirement.take([early])
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(retirement.run, lambda: [used])
            await early.retired.wait()
            retirement.take([late])
            await late.retired.wait()
            tasks.cancel_scope.cancel()
    assert [service.done for service in (early, late, used)] == [["retired"], ["retired"], ["closed"]]
