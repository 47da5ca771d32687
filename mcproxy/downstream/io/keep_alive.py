"""Signs of life for streams on which nothing happens, or what lies between takes them for dead. Writes none itself.

One timer is for all of them: most streams idle, and there may be many thousands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Final, Protocol

ROUNDS: Final = 16
"""How often, in the time that a stream may be silent, silent ones are looked for."""
AT_ONCE: Final = 100
"""Signs of life that are given on end: whoever calls meanwhile must not wait for thousands."""


class Silent(Protocol):
    written: float
    """When something was last written, by the clock of the loop."""

    def keep_alive(self) -> None:
        """Writes something that means nothing."""


class KeepAlive:
    """`patience` says how many seconds a stream may be silent, as of now. None is silent for longer."""

    def __init__(self, patience: Callable[[], float]) -> None:
        self._patience = patience
        self._streams: set[Silent] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: Silent) -> None:
        self._streams.add(stream)
        if self._timer is None:
            self._wait()

    def discard(self, stream: Silent) -> None:
        self._streams.discard(stream)
        if self._timer is not None and not self._streams:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        # In nobody's context: it goes on for as long as there are streams, whosever call the first one answers.
        self._timer = asyncio.get_running_loop().call_later(self._patience() / ROUNDS, self._look, context=Context())

    def _look(self) -> None:
        self._wait()
        # Those that would be silent for too long at the next round.
        since = asyncio.get_running_loop().time() - self._patience() * (1 - 1 / ROUNDS)
        self._give([stream for stream in self._streams if stream.written <= since])

    def _give(self, due: list[Silent]) -> None:
        """To some; to the others once the loop has turned."""
        for stream in due[:AT_ONCE]:
            if stream in self._streams:
                stream.keep_alive()
        if len(due) > AT_ONCE:
            asyncio.get_running_loop().call_soon(self._give, due[AT_ONCE:])
