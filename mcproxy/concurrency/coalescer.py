"""Work by key, where only the latest state counts: one run at a time, and one more for all who asked meanwhile.

However often a key is wanted during a run, one run follows, and it begins after the last of those wishes (R19).
Knows nothing of what the work is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from mcproxy.concurrency.clock import Sleep
from mcproxy.concurrency.wakeup import Wakeup

K = TypeVar("K", bound=Hashable)


class Coalescer(Generic[K]):
    """`work` raises nothing but cancellation. Wishes may come before `run` does."""

    def __init__(self, work: Callable[[K], Awaitable[None]], sleep: Sleep = anyio.sleep) -> None:
        self._work = work
        self._sleep = sleep
        self._pending: dict[K, None] = {}
        self._running: set[K] = set()
        self._alarms: dict[K, anyio.CancelScope] = {}
        self._new_alarms: list[tuple[K, float, anyio.CancelScope]] = []
        self._wakeup = Wakeup()

    def want(self, key: K) -> None:
        self._silence(key)
        self._pending[key] = None
        self._wakeup.notify_all()

    def want_after(self, key: K, seconds: float) -> None:
        """Wants `key` in a while, unless it is wanted already, or wanted or forgotten before."""
        if key in self._pending:
            return
        self._silence(key)
        self._alarms[key] = scope = anyio.CancelScope()
        self._new_alarms.append((key, seconds, scope))
        self._wakeup.notify_all()

    def forget(self, key: K) -> None:
        """Takes back what was wanted and has not begun."""
        self._silence(key)
        self._pending.pop(key, None)
        self._wakeup.notify_all()

    def wanted(self, key: K) -> bool:
        """Whether `key` is wanted by somebody who came after the run that there may be began."""
        return key in self._pending

    def busy(self, key: K) -> bool:
        return key in self._pending or key in self._running

    async def done(self, key: K) -> None:
        """Returns when all that was wanted of `key` is done."""
        while self.busy(key):
            await self._wakeup.wait()

    async def run(self) -> None:
        """Does the work until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._start(tasks)
                await self._wakeup.wait()

    def _start(self, tasks: TaskGroup) -> None:
        alarms, self._new_alarms = self._new_alarms, []
        for alarm in alarms:
            tasks.start_soon(self._ring, *alarm)
        for key in [key for key in self._pending if key not in self._running]:
            del self._pending[key]
            self._running.add(key)
            tasks.start_soon(self._serve, key)

    async def _serve(self, key: K) -> None:
        try:
            await self._work(key)
        finally:
            self._running.discard(key)
            self._wakeup.notify_all()

    async def _ring(self, key: K, seconds: float, scope: anyio.CancelScope) -> None:
        with scope:
            await self._sleep(seconds)
        if self._alarms.get(key) is scope:
            self.want(key)

    def _silence(self, key: K) -> None:
        scope = self._alarms.pop(key, None)
        if scope is not None:
            scope.cancel()
