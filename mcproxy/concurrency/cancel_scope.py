"""Cancel one piece of work inside a task that goes on: a request, but not the connection that it came by."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import msgspec


class TaskCancelScope(msgspec.Struct, eq=False):
    """Entered around the work, by the task that does it. Leaving it after `cancel` swallows that cancellation.

    Given its `loop`, it need not ask for it, which is a system call before Python 3.12.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _task: asyncio.Task[Any] | None = None
    _cancelled: bool = False

    def cancel(self) -> None:
        """Idempotent; has no effect outside the scope."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def __enter__(self) -> TaskCancelScope:
        self._task = asyncio.current_task(self._loop)
        assert self._task is not None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        assert task is not None
        # If the task itself was cancelled too, that cancellation goes on.
        return self._cancelled and task.uncancel() == 0 and kind is asyncio.CancelledError
