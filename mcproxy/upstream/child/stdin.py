"""What a child reads on its stdin: lines, each written whole or not at all, in order, with no task in between.

Waits for a child that reads slowly, and tells one that does not read. Knows nothing of what the lines say.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio


class ChildStdin(asyncio.BaseProtocol):
    """Our end of the pipe."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport
        self._full = False
        self._lost = False
        self._refused = False
        """Whether something could not be written."""
        self._wakeup = anyio.Event()

    async def write(self, line: bytes) -> None:
        """Returns when the line is on its way. Raises BrokenResourceError where nobody reads any more."""
        while self._full:
            await self._wakeup.wait()
        if self._lost:
            self._refused = True
            self._wake()
            raise anyio.BrokenResourceError
        self._transport.write(line)

    async def watch(self, timeout: float) -> None:
        """Returns when something could not be written, for nobody reads any more.

        Raises TimeoutError where what is written is not read for `timeout` seconds.
        """
        while not self._refused:
            with anyio.fail_after(timeout if self._full else math.inf):
                await self._wakeup.wait()

    def close(self) -> None:
        """Ends what the child reads, after all that has been written."""
        self._transport.close()

    def abort(self) -> None:
        """Ends it at once."""
        if not self._lost:
            self._transport.abort()

    # asyncio.BaseProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are no subclasses of it

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost, self._full, self._refused = True, False, self._refused or exc is not None
        self._wake()

    def pause_writing(self) -> None:
        self._full = True
        self._wake()

    def resume_writing(self) -> None:
        self._full = False
        self._wake()

    def _wake(self) -> None:
        wakeup, self._wakeup = self._wakeup, anyio.Event()
        wakeup.set()


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[int, ChildStdin]]:
    """The end that the child is to inherit, which is then to be closed here, and ours."""
    theirs, ours = os.pipe()
    loop = asyncio.get_running_loop()
    try:
        _, stdin = await loop.connect_write_pipe(ChildStdin, os.fdopen(ours, "wb", buffering=0))
    except BaseException:
        os.close(theirs)
        raise
    try:
        yield theirs, stdin
    finally:
        stdin.abort()
