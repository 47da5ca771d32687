"""Frames on their way to one connection: senders never wait, and one writer takes all that is there.

Bounded (requirement R23): when the buffer is full, a droppable frame is dropped; any other ends the connection, since a
client that does not keep up is disconnected. Knows nothing of frames' contents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from mcproxy.http.server import UnsentBytes
from mcproxy.settings import LimitSettings

COUNTED: Final = 64 * 1024
"""Bytes by which a buffer grows between two times that it is counted among all."""


class SendBuffer:
    """`on_ready` is called when its writer should look at it, though there may be nothing.

    `refill` is called when it is found empty, to put into it what waits elsewhere; returns whether more may wait.
    """

    __slots__ = ("_counted", "_frames", "_limits", "_queued", "_size", "closed", "may_have_more", "on_ready", "refill")

    def __init__(self, limits: LimitSettings, queued: UnsentBytes | None = None) -> None:
        """`queued` counts what waits in all buffers, if that is bounded (implements `UnsentConnection` for it)."""
        self.on_ready: Callable[[], None] = _do_nothing
        self.refill: Callable[[], bool] = _add_nothing
        self.may_have_more = False
        """Whether there may be more frames after those taken last."""
        self._limits = limits
        self._frames: list[bytes] = []
        self._size = 0
        self._queued = queued
        self._counted = 0
        """The size that `queued` knows of; 0 where it does not count this buffer."""
        self.closed = False
        """Whether it accepts no more frames."""

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def drained(self) -> bool:
        """Whether nothing is left to write, nor will be."""
        return self.closed and not self._frames

    def put(self, frame: bytes, *, droppable: bool = False) -> None:
        """Adds a frame.

        If there is no room, a droppable frame is dropped; any other ends the connection (`discard`).
        """
        if self.closed:
            return
        # A single frame always fits: the size of messages is limited where they arrive.
        first = not self._frames
        if not (first or self._has_room(frame)):
            if not droppable:
                self.discard()
            return
        self._frames.append(frame)
        self._size += len(frame)
        # The writer was notified of earlier frames.
        if first:
            self.on_ready()
        if self._size - self._counted >= COUNTED and self._queued is not None:
            self._counted = self._size
            self._queued.add(self)

    @property
    def held(self) -> int:
        """Bytes in it."""
        return self._size

    @property
    def unsent(self) -> int:
        """Bytes in it: all frames are taken together."""
        return self._size

    def reset(self) -> None:
        """Ends the connection, where all buffers together hold too much."""
        self._counted = 0
        self.discard()

    def restore(self, frames: list[bytes]) -> None:
        """Adds frames whose number is limited elsewhere: the events of a stream that is resumed."""
        self._frames += frames
        self._size += sum(map(len, frames))
        self.notify_writer()

    def close(self) -> None:
        """Accepts no more frames; those in it can still be taken."""
        self.closed = True
        self.notify_writer()

    def discard(self) -> None:
        """Closes and drops the frames: their connection is over."""
        self._frames, self._size = [], 0
        if self._counted:
            self._uncount()
        self.close()

    def notify_writer(self) -> None:
        """Wakes the writer: `refill` may have frames to add."""
        self.on_ready()

    def take(self) -> bytes:
        """Removes and returns all frames."""
        self.may_have_more = bool(self._frames) or (not self.closed and self.refill())
        taken = b"".join(self._frames)
        self._frames.clear()
        self._size = 0
        if self._counted:
            self._uncount()
        return taken

    def _uncount(self) -> None:
        self._counted = 0
        if self._queued is not None:
            self._queued.discard(self)

    def _has_room(self, frame: bytes) -> bool:
        limits = self._limits
        return len(self._frames) < limits.max_queued_messages and self._size + len(frame) <= limits.max_queued_bytes


async def pump(buffer: SendBuffer, write: Callable[[bytes], Awaitable[None]]) -> None:
    """Writes frames as they come, until the buffer is drained."""
    ready = asyncio.Event()
    buffer.on_ready = ready.set
    while not buffer.drained:
        ready.clear()
        frames = buffer.take()
        if frames:
            await write(frames)
        elif not buffer.drained:
            await ready.wait()


def _do_nothing() -> None:
    return


def _add_nothing() -> bool:
    return False
