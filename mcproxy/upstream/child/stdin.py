"""A child's stdin, written as whole lines, in order, without a task in between.

A write waits for a child that reads slowly; `watch` reports a child that does not read at all. Interprets no line.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio

from mcproxy.concurrency.wakeup import Wakeup


class ChildStdin(asyncio.BaseProtocol):
    """The gateway's end of the pipe, as an asyncio protocol."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport
        self._full = False
        self._lost = False
        self._refused = False
        """Whether a line could not be written."""
        self._wakeup = Wakeup()

    async def write(self, line: bytes) -> None:
        """Returns when the line is in the pipe's buffer. Raises BrokenResourceError if the child closed its end."""
        while self._full:
            await self._wakeup.wait()
        if self._lost:
            self._refused = True
            self._wakeup.notify_all()
            raise anyio.BrokenResourceError
        self._transport.write(line)

    async def watch(self, timeout: float) -> None:
        """Returns once a line could not be written because the child closed its end.

        Raises TimeoutError where the pipe stays full for `timeout` seconds.
        """
        while not self._refused:
            with anyio.fail_after(timeout if self._full else math.inf):
                await self._wakeup.wait()

    def close(self) -> None:
        """Closes the pipe once the child has read all that was written."""
        self._transport.close()

    def abort(self) -> None:
        """Closes the pipe at once."""
        if not self._lost:
            self._transport.abort()

    # asyncio.BaseProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's transports are no subclasses of it

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost, self._full, self._refused = True, False, self._refused or exc is not None
        self._wakeup.notify_all()

    def pause_writing(self) -> None:
        self._full = True
        self._wakeup.notify_all()

    def resume_writing(self) -> None:
        self._full = False
        self._wakeup.notify_all()


class _PipeEnd:
    """The gateway's end of a pipe, as a file that is closed exactly once.

    asyncio's transport closes the file. uvloop's closes the descriptor, and the file later or never; by then the number
    may belong to another file or connection, which closing or collecting a plain file object would close.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._identity = _identity(descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        if self._identity is not None and _identity(self._descriptor) == self._identity:
            os.close(self._descriptor)
        self._identity = None


def _identity(descriptor: int) -> tuple[int, int] | None:
    """The device and inode of a descriptor; None if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@asynccontextmanager
async def stdin_pipe() -> AsyncIterator[tuple[int, ChildStdin]]:
    """Makes a pipe: the descriptor for the child, which the caller closes after the start, and the gateway's end."""
    theirs, ours = os.pipe()
    loop = asyncio.get_running_loop()
    try:
        _, stdin = await loop.connect_write_pipe(ChildStdin, _PipeEnd(ours))
    except BaseException:
        os.close(theirs)
        raise
    try:
        yield theirs, stdin
    finally:
        stdin.abort()
