"""One response: its head, and its body as the connection brings it and one reader takes it. Knows no socket."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from mcproxy.http.client.heads import NO_HEAD, ResponseHead

MAX_UNREAD: Final = 256 * 1024
"""Bytes of a body that wait for a reader of pieces; beyond, the connection's reading is paused."""
MAX_UNREAD_WHOLE: Final = 4 * 1024 * 1024
"""Bytes, likewise, of a body whose length is known: most readers take it whole, once they are told of its head."""
LONG_PIECE: Final = 4 * 1024
"""Bytes of a piece of a body that is kept as it arrived until all are joined."""
LAST_BYTES: Final = 16 * 1024
"""Bytes that are still taken of a response that was released, so that its connection can serve again."""


class ConnectionBroken(Exception):
    """The connection ended, or ceased to be HTTP, before the response was complete.

    `is_unanswered`: not a byte of the response had arrived.
    """

    def __init__(self, reason: str, *, is_unanswered: bool = False) -> None:
        super().__init__(reason)
        self.is_unanswered = is_unanswered


class ResponseTooLarge(Exception):
    """A body is larger than its reader's limit."""


class ResponseSource(Protocol):
    """What a response needs of its connection."""

    def update_reading(self) -> None:
        """Pause or resume reading: `ClientResponse.unread` has changed."""

    def release(self, response: ClientResponse) -> None:
        """Serve again once the rest of `response` has arrived; give up if that takes long."""

    def abort(self) -> None:
        """End the connection at once."""


class ClientResponse:
    """A response on its way. One task reads it, and releases or closes it."""

    __slots__ = (
        "_body",
        "_connection",
        "_error",
        "_is_dropped",
        "_is_read_whole",
        "_loop",
        "_more",
        "_waiter",
        "head",
        "is_complete",
        "max_unread",
        "unread",
    )

    def __init__(self, connection: ResponseSource, loop: asyncio.AbstractEventLoop) -> None:
        self.head: ResponseHead = NO_HEAD
        self.is_complete = False
        """True once all of it arrived."""
        self.unread = 0
        """Bytes of the body that arrived and were not taken."""
        self.max_unread = MAX_UNREAD
        """Bytes of the body that may wait; with more, the connection's reading is paused."""
        self._connection = connection
        self._loop = loop
        self._body: bytes = b""
        """The first piece that was not taken; most bodies have no other."""
        self._more: list[bytes | bytearray] | None = None
        """Further ones: long pieces as they arrived, short ones joined, which as objects are many times their bytes."""
        self._is_dropped = False
        self._is_read_whole = False
        """True once the reader waits for all of the body, and need not be told of pieces."""
        self._error: ConnectionBroken | None = None
        self._waiter: asyncio.Future[None] | None = None

    # For its reader

    def changed(self) -> asyncio.Future[None]:
        """Is done when more arrived, or the end. Raises ConnectionBroken if nothing will."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        return self._waiter

    def __aiter__(self) -> ClientResponse:
        """Iterate over the body as it arrives: all that is there each time. Raises ConnectionBroken."""
        return self

    async def __anext__(self) -> bytes:
        while not (self.unread or self.is_complete):
            await self.changed()
        if not self.unread:
            raise StopAsyncIteration
        return self._take()

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises ResponseTooLarge over `limit` bytes, and ConnectionBroken."""
        self.max_unread, self._is_read_whole = limit, True
        if not self.is_complete:
            self._connection.update_reading()
        while not self.is_complete and self.unread <= limit:
            await self.changed()
        return self.rest(limit)

    def rest(self, limit: int) -> bytes:
        """What was not read yet of a complete response. Raises ResponseTooLarge over `limit` bytes."""
        if self.unread > limit:
            raise ResponseTooLarge
        return self._take()

    def release(self) -> None:
        """Let the connection serve again once the rest arrived; it is given up if that takes long."""
        if not self.is_complete:
            self._connection.release(self)

    def close(self) -> None:
        """Give up the connection, unless the response is complete."""
        if not self.is_complete:
            self._connection.abort()

    # For its connection

    def begin(self, head: ResponseHead, length: int = 0) -> None:
        """Take the head. `length`: bytes of the body, if that is known."""
        self.head = head
        self.max_unread = max(self.max_unread, min(length, MAX_UNREAD_WHOLE))
        self._wake()

    def finish_with(self, head: ResponseHead, body: bytes) -> None:
        """Take all of it at once."""
        self.head, self._body, self.unread, self.is_complete = head, body, len(body), True
        self._wake()

    def feed(self, data: bytes) -> None:
        """Take a piece of the body."""
        self.unread += len(data)
        if not self._is_dropped:
            if not self._body:
                self._body = data
            else:
                self._add(data)
            if not self._is_read_whole or self.unread > self.max_unread:
                self._wake()
        elif self.unread > LAST_BYTES:
            self._connection.abort()

    def finish(self) -> None:
        """Take note that it is complete."""
        self.is_complete = True
        self._wake()

    def fail(self, error: ConnectionBroken) -> None:
        """Take note that the rest will not arrive."""
        self._error = error
        self._wake()

    def drop(self) -> None:
        """Throw the body away, and what still arrives of it."""
        self._is_dropped, self._body, self._more, self.unread = True, b"", None, 0

    def _add(self, data: bytes) -> None:
        if self._more is None:
            self._more = []
        if len(data) >= LONG_PIECE:
            self._more.append(data)
        elif self._more and isinstance(last := self._more[-1], bytearray) and len(last) < LONG_PIECE:
            last += data
        else:
            self._more.append(bytearray(data))

    def _take(self) -> bytes:
        body, more = self._body, self._more
        self._body, self._more, self.unread = b"", None, 0
        if more is not None:
            body = b"".join((body, *more))
        if not self.is_complete:
            self._connection.update_reading()
        return body

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
