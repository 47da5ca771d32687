"""An event that wakes every task that waits now, and is unset again at once."""

from __future__ import annotations

import anyio


class Wakeup:
    """For loops of the form `while not condition: await wakeup.wait()`; call `notify_all` after each change."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    async def wait(self) -> None:
        """Returns at the next `notify_all`."""
        await self._event.wait()

    def notify_all(self) -> None:
        """Wakes all tasks that wait now. Never blocks."""
        event, self._event = self._event, anyio.Event()
        event.set()
