"""One response: its head, and its body as its connection brings it and its reader takes it. Knows no socket."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from mcproxy.http.client.headers import NOTHING_YET, Head

MOST_UNREAD: Final = 256 * 1024
"""Bytes of a body that wait for their reader; the server is made to wait beyond."""
LAST_BYTES: Final = 16 * 1024
"""Of an answer that nobody reads any more, what is still taken so that its connection can serve again."""


class Broken(Exception):
    """The connection ended, or ceased to be HTTP, before the answer was whole.

    `silent`: not a byte of an answer had come.
    """

    def __init__(self, how: str, *, silent: bool = False) -> None:
        super().__init__(how)
        self.silent = silent


class TooLarge(Exception):
    """A body over the limit that its reader gave."""


class ResponseSource(Protocol):
    """What brings an answer."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def release(self, answer: ClientResponse) -> None: ...

    def abort(self) -> None: ...


class ClientResponse:
    """Read by one task, which releases or closes it."""

    __slots__ = ("_carrier", "_dropping", "_error", "_loop", "_size", "_unread", "_waiter", "head", "whole")

    def __init__(self, carrier: ResponseSource, loop: asyncio.AbstractEventLoop) -> None:
        self.head: Head = NOTHING_YET
        self.whole = False
        """Whether all of it has come."""
        self._carrier = carrier
        self._loop = loop
        self._unread: list[bytes] = []
        self._size = 0
        self._dropping = False
        self._error: Broken | None = None
        self._waiter: asyncio.Future[None] | None = None

    def stirred(self) -> asyncio.Future[None]:
        """Is done when more has come, or the end. Raises Broken where nothing will."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        return self._waiter

    def __aiter__(self) -> ClientResponse:
        """The body as it comes: all that is there each time, so that whoever asks for more waits. Raises Broken."""
        return self

    async def __anext__(self) -> bytes:
        while not (self._unread or self.whole):
            await self.stirred()
        if not self._unread:
            raise StopAsyncIteration
        return b"".join(self._taken())

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises TooLarge over `limit` bytes, and Broken."""
        body: list[bytes] = []
        size = 0
        while True:
            size += self._size
            if size > limit:
                raise TooLarge
            body += self._taken()
            if self.whole:
                return b"".join(body)
            await self.stirred()

    def rest(self, limit: int) -> bytes:
        """What is not read yet of an answer that is whole. Raises TooLarge over `limit` bytes."""
        if self._size > limit:
            raise TooLarge
        return b"".join(self._taken())

    def release(self) -> None:
        """Lets the connection serve again as soon as the rest has come, or gives it up where that takes long."""
        if not self.whole:
            self._carrier.release(self)

    def close(self) -> None:
        """Gives up the connection, unless the answer is whole."""
        if not self.whole:
            self._carrier.abort()

    def begin(self, head: Head) -> None:
        self.head = head
        if self._waiter is not None:
            self._stir(self._waiter)

    def give(self, head: Head, body: bytes) -> None:
        """All of it at once."""
        self._unread.append(body)
        self._size, self.whole = len(body), True
        self.begin(head)

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        if self._dropping:
            if self._size > LAST_BYTES:
                self._carrier.abort()
            return
        self._unread.append(data)
        if self._size > MOST_UNREAD:
            self._carrier.pause()
        if self._waiter is not None:
            self._stir(self._waiter)

    def finish(self) -> None:
        self.whole = True
        if self._waiter is not None:
            self._stir(self._waiter)

    def fail(self, error: Broken) -> None:
        self._error = error
        if self._waiter is not None:
            self._stir(self._waiter)

    def drop(self) -> None:
        """Nobody reads on: what still comes is thrown away."""
        self._dropping, self._unread, self._size = True, [], 0

    def _taken(self) -> list[bytes]:
        unread, self._unread, self._size = self._unread, [], 0
        if not self.whole:
            self._carrier.resume()
        return unread

    def _stir(self, waiter: asyncio.Future[None]) -> None:
        self._waiter = None
        if not waiter.done():
            waiter.set_result(None)
