"""Whether a child still lives that leaves calls without an answer. Ends the connection to one that hangs.

A child that hangs reads nothing and says nothing: each of its calls would time out, for as long as it runs. Nothing is
done before a call was given up, and a child that says anything, or writes to its stderr, is left alone: it may be busy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

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
    """The doubts about one child. `ask` asks it whether it lives, and `end` ends its connection, with the reason.

    `awaits_us` tells whether it waits for an answer of ours: meanwhile it may well be silent.
    """

    def __init__(
        self,
        pipe: Duplex,
        timeouts: Callable[[], UpstreamTimeouts],
        tasks: TaskGroup,
        ask: Ask,
        awaits_us: Callable[[], bool],
        end: Callable[[str], None],
    ) -> None:
        self._pipe = pipe
        self._timeouts = timeouts
        self._tasks = tasks
        self._ask = ask
        self._awaits_us = awaits_us
        self._end = end
        self._is_doubted = False

    def doubt(self) -> None:
        """Notes that a call was given up. Never blocks."""
        if not self._is_doubted:
            self._is_doubted = True
            self._tasks.start_soon(self._examine)

    async def _examine(self) -> None:
        try:
            await self._end_if_hung()
        finally:
            self._is_doubted = False

    async def _end_if_hung(self) -> None:
        """Waits for a word of the child, then asks for one; ends the connection if none comes."""
        if self._awaits_us():
            return
        heard, began, timeouts = self._pipe.heard, anyio.current_time(), self._timeouts()
        await anyio.sleep(timeouts.idle)
        if self._pipe.heard != heard:
            return
        # The question is no harder than `initialize`, for which a child that was just started has that long.
        patience = max(timeouts.idle, timeouts.connect)
        try:
            await self._ask(Timeouts(patience, patience))
        except RequestTimeout:
            await anyio.sleep(MOMENT)
        except (NotAccepted, PeerGone, Rejected):
            return
        if self._pipe.heard == heard:
            seconds = anyio.current_time() - began
            self._end(f"the child hangs: it said nothing for {seconds:.0f} s, and answers no question")
