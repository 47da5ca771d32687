"""Coalesced work by key: one run at a time, and one more run for all requests that came meanwhile (R19).

However often a key is requested during a run, one run follows, and it begins after the last of those requests.
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
    """`work` raises nothing but cancellation. Keys may be requested before `run` begins."""

    def __init__(self, work: Callable[[K], Awaitable[None]], sleep: Sleep = anyio.sleep) -> None:
        self._work = work
        self._sleep = sleep
        self._pending: dict[K, None] = {}
        self._running: set[K] = set()
        self._timers: dict[K, anyio.CancelScope] = {}
        self._new_timers: list[tuple[K, float, anyio.CancelScope]] = []
        self._wakeup = Wakeup()

    def want(self, key: K) -> None:
        """Requests a run of `key`, which begins after this. Never blocks."""
        self._cancel_timer(key)
        self._pending[key] = None
        self._wakeup.notify_all()

    def want_after(self, key: K, seconds: float) -> None:
        """Requests a run of `key` after so many seconds, unless one is pending, or requested or forgotten before."""
        if key in self._pending:
            return
        self._cancel_timer(key)
        self._timers[key] = scope = anyio.CancelScope()
        self._new_timers.append((key, seconds, scope))
        self._wakeup.notify_all()

    def forget(self, key: K) -> None:
        """Drops a request whose run has not begun."""
        self._cancel_timer(key)
        self._pending.pop(key, None)
        self._wakeup.notify_all()

    def wanted(self, key: K) -> bool:
        """Whether a run is pending that has not begun, beside the one that may be running."""
        return key in self._pending

    def busy(self, key: K) -> bool:
        """Whether a run of `key` is pending or running."""
        return key in self._pending or key in self._running

    async def done(self, key: K) -> None:
        """Returns when no run of `key` is pending or running."""
        while self.busy(key):
            await self._wakeup.wait()

    async def run(self) -> None:
        """Does the work until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._start(tasks)
                await self._wakeup.wait()

    def _start(self, tasks: TaskGroup) -> None:
        timers, self._new_timers = self._new_timers, []
        for timer in timers:
            tasks.start_soon(self._request_later, *timer)
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

    async def _request_later(self, key: K, seconds: float, scope: anyio.CancelScope) -> None:
        with scope:
            await self._sleep(seconds)
        if self._timers.get(key) is scope:
            self.want(key)

    def _cancel_timer(self, key: K) -> None:
        scope = self._timers.pop(key, None)
        if scope is not None:
            scope.cancel()
