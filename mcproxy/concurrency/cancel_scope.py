"""Cancel one piece of work inside a task that goes on: a request, but not the connection that it came by."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class TaskCancelScope:
    """Entered around the work, by the task that does it. Leaving it after `cancel` swallows that cancellation.

    Given its `loop`, it need not ask for it, which is a system call before Python 3.12.
    """

    _task: asyncio.Task[Any]
    _cancelled = False
    _left = False

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop

    def cancel(self) -> None:
        """Idempotent, and without effect once the scope was left."""
        if not (self._cancelled or self._left):
            self._cancelled = True
            self._task.cancel()

    def __enter__(self) -> TaskCancelScope:
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._task = task
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._left = True
        # Where the task itself was cancelled as well, that cancellation goes on.
        return self._cancelled and self._task.uncancel() == 0 and kind is asyncio.CancelledError
