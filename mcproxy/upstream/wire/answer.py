"""One response: its head, and its body as its connection brings it and its reader takes it. Knows no socket."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from mcproxy.upstream.wire.heads import Head

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


class Carrier(Protocol):
    """What brings an answer."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def release(self, answer: Answer) -> None: ...

    def abort(self) -> None: ...


class Answer:
    """Read by one task, which releases or closes it."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._head: Head | None = None
        self._unread: list[bytes] = []
        self._size = 0
        self._whole = False
        self._dropping = False
        self._error: Broken | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_begun(self) -> bool:
        return self._head is not None

    @property
    def head(self) -> Head:
        assert self._head is not None, "it has not begun"
        return self._head

    @property
    def whole(self) -> bool:
        """Whether all of it has come."""
        return self._whole

    async def begun(self) -> None:
        """Returns when the head is there. Raises Broken."""
        while self._head is None:
            await self._stirred()

    async def next(self) -> bytes:
        """What has come of the body, as soon as there is some; nothing (b"") at the end. Raises Broken."""
        while not (self._unread or self._whole):
            await self._stirred()
        unread, self._unread, self._size = self._unread, [], 0
        self._carrier.resume()
        return b"".join(unread)

    def __aiter__(self) -> Answer:
        """The body as it comes, read with `next`."""
        return self

    async def __anext__(self) -> bytes:
        chunk = await self.next()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises TooLarge over `limit` bytes, and Broken."""
        body: list[bytes] = []
        size = 0
        while chunk := await self.next():
            size += len(chunk)
            if size > limit:
                raise TooLarge
            body.append(chunk)
        return b"".join(body)

    def release(self) -> None:
        """Lets the connection serve again as soon as the rest has come, or gives it up where that takes long."""
        self._carrier.release(self)

    def close(self) -> None:
        """Gives up the connection, unless the answer is whole."""
        if self._whole:
            self._carrier.release(self)
        else:
            self._carrier.abort()

    def begin(self, head: Head) -> None:
        self._head = head
        self._stir()

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        if self._dropping:
            if self._size > LAST_BYTES:
                self._carrier.abort()
            return
        self._unread.append(data)
        if self._size > MOST_UNREAD:
            self._carrier.pause()
        self._stir()

    def finish(self) -> None:
        self._whole = True
        self._stir()

    def fail(self, error: Broken) -> None:
        self._error = error
        self._stir()

    def drop(self) -> None:
        """Nobody reads on: what still comes is thrown away."""
        self._dropping, self._unread, self._size = True, [], 0

    def _stir(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _stirred(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
