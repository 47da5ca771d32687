"""Frames on their way to one connection: the sender never waits, and one writer drains them.

Bounded: what may be missed is dropped when the box is full, and what may not ends the connection, for a client
that does not keep up is disconnected (requirement R23). Knows nothing of what a frame says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mcproxy.settings import LimitSettings


class SendBuffer:
    """`when_woken` is called whenever whoever drains it should look, though there may be nothing.

    `refill` is called whenever it is found empty, to put into it what waits elsewhere; it says whether more may wait.
    """

    __slots__ = ("_frames", "_limits", "_size", "closed", "may_have_more", "refill", "when_woken")

    def __init__(self, limits: LimitSettings) -> None:
        self.when_woken: Callable[[], None] = _nobody
        self.refill: Callable[[], bool] = _nothing
        self.may_have_more = False
        """Whether there may be something to take after what was taken last."""
        self._limits = limits
        self._frames: list[bytes] = []
        self._size = 0
        self.closed = False
        """Whether it takes no more."""

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def drained(self) -> bool:
        """Whether nothing is left to write, nor will be."""
        return self.closed and not self._frames

    def put(self, frame: bytes, *, may_miss: bool = False) -> None:
        if self.closed:
            return
        # One frame always fits: how large a message may be is decided where it comes in.
        first = not self._frames
        if not (first or self._has_room(frame)):
            if not may_miss:
                self.discard()
            return
        self._frames.append(frame)
        self._size += len(frame)
        # Who drains it has been woken for those before.
        if first:
            self.when_woken()

    def restore(self, frames: list[bytes]) -> None:
        """Puts what is bounded elsewhere: the events of a stream that is resumed."""
        self._frames += frames
        self._size += sum(map(len, frames))
        self.wake()

    def close(self) -> None:
        """Takes no more; what is in it can still be drained."""
        self.closed = True
        self.wake()

    def discard(self) -> None:
        """Closes, and lets go of what was not written: its connection is over, whoever still holds the box."""
        self._frames, self._size = [], 0
        self.close()

    def wake(self) -> None:
        """Says that there may be something to put."""
        self.when_woken()

    def take(self) -> bytes:
        """All frames at once."""
        self.may_have_more = bool(self._frames) or (not self.closed and self.refill())
        taken = b"".join(self._frames)
        self._frames.clear()
        self._size = 0
        return taken

    def _has_room(self, frame: bytes) -> bool:
        limits = self._limits
        return len(self._frames) < limits.max_queued_messages and self._size + len(frame) <= limits.max_queued_bytes


async def pump(outbox: SendBuffer, write: Callable[[bytes], Awaitable[None]]) -> None:
    """Writes what comes until the box is drained."""
    woken = asyncio.Event()
    outbox.when_woken = woken.set
    while not outbox.drained:
        woken.clear()
        frames = outbox.take()
        if frames:
            await write(frames)
        elif not outbox.drained:
            await woken.wait()


def _nobody() -> None:
    return


def _nothing() -> bool:
    return False
