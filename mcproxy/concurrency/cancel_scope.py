"""Work in the task at hand that can be cancelled without ending the task: a request whose connection goes on."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class TaskCancelScope:
    """Entered around the work, by the task that does it. Once cancelled, leaving it stops the cancellation."""

    _task: asyncio.Task[Any]
    _cancelled = False
    _over = False

    def cancel(self) -> None:
        """Idempotent, and without effect once the work is over."""
        if not (self._cancelled or self._over):
            self._cancelled = True
            self._task.cancel()

    def __enter__(self) -> TaskCancelScope:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._over = True
        # Whoever cancelled the task as well wants it to end.
        return self._cancelled and self._task.uncancel() == 0 and kind is asyncio.CancelledError
