"""A loop whose clock the test commands: its timers fire when it says so, and no test waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import pytest

TURNS = 20
"""Of the loop, in which what a timer began comes to its end."""


class CommandedLoop(asyncio.SelectorEventLoop):
    """Time stands still but for `advance`."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0

    def time(self) -> float:
        return self._now

    async def advance(self, seconds: float) -> None:
        """Lets that much time pass: every timer until then fires."""
        self._now += seconds
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Runs `main`, and closes the loop."""
        try:
            self.run_until_complete(main)
        finally:
            self.close()


_BACKEND: Final = ("asyncio", {"loop_factory": CommandedLoop})
COMMANDED: Final = pytest.mark.parametrize("anyio_backend", [_BACKEND], ids=["still"])
"""Has a test of anyio run on such a loop."""


def commanded_loop() -> CommandedLoop:
    """The loop that such a test runs on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CommandedLoop)
    return loop
