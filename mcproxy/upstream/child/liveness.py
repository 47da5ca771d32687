"""Whether a child still lives that leaves calls without an answer. Ends the connection to one that hangs.

A child that hangs reads nothing and says nothing: each of its calls would time out, for as long as it runs. Nothing is
done before a call was given up, and a child that says anything, or writes to its stderr, is left alone: it may be busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final, Self

import anyio
from anyio.abc import TaskGroup

from mcproxy.pending_requests import PeerGone, RequestTimeout, Timeouts
from mcproxy.settings import UpstreamTimeouts
from mcproxy.upstream.link import Duplex, NotAccepted, Rejected

MOMENT: Final = 0.1
"""Seconds in which what has come is read: where the gateway itself stood still, its timers are due before that."""

Ask = Callable[[Timeouts], Awaitable[object]]
"""Asks the server what every server answers. Raises RequestTimeout, and what sending raises."""


class Liveness:
    """The doubts about one child, within the `with` block. `ask` asks it whether it lives.

    `end` ends its connection, with the reason. `may_be_silent` tells whether it waits for an answer of ours, or
    works on a task, for which it has longer.
    """

    def __init__(
        self,
        pipe: Duplex,
        timeouts: Callable[[], UpstreamTimeouts],
        tasks: TaskGroup,
        ask: Ask,
        may_be_silent: Callable[[], bool],
        end: Callable[[str], None],
    ) -> None:
        self._pipe = pipe
        self._timeouts = timeouts
        self._tasks = tasks
        self._ask = ask
        self._may_be_silent = may_be_silent
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        """Due once the child has been listened to for long enough."""
        self._is_doubted = False
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def doubt(self) -> None:
        """Notes that a call was given up. Never blocks."""
        if self._is_doubted or self._is_over or self._may_be_silent():
            return
        self._is_doubted = True
        listening = self._timeouts().idle
        self._timer = self._loop.call_later(
            listening, self._look, self._pipe.heard, self._loop.time(), context=Context()
        )

    def _look(self, heard: int, began: float) -> None:
        self._timer = None
        if self._pipe.heard == heard:
            self._tasks.start_soon(self._examine, heard, began)
        else:
            self._is_doubted = False

    async def _examine(self, heard: int, began: float) -> None:
        try:
            await self._end_if_hung(heard, began)
        finally:
            self._is_doubted = False

    async def _end_if_hung(self, heard: int, began: float) -> None:
        """Asks a child that has said nothing since `began` for a word; ends the connection if none comes."""
        # The question is no harder than `initialize`, for which a child that was just started has that long.
        patience = max(self._timeouts().idle, self._timeouts().connect)
        try:
            await self._ask(Timeouts(patience, patience))
        except RequestTimeout:
            await anyio.sleep(MOMENT)
        except (NotAccepted, PeerGone, Rejected):
            return
        if self._pipe.heard == heard:
            seconds = self._loop.time() - began
            self._end(f"the child hangs: it said nothing for {seconds:.0f} s, and answers no question")
