"""Event streams on their way to HTTP clients: written as they come, kept alive, and ended with their outbox.

What comes in one turn of the loop goes in one piece, and while a client does not keep up nothing is taken out of the
box, so that changes coalesce (requirement R23). Knows nothing of what an event says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.responses import EVENTS
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.http import server as http
from mcproxy.protocol.sse import KEEP_ALIVE

_HEADERS: Final = {
    "Content-Type": EVENTS,
    "Cache-Control": "no-store",
    # nginx and its like hold a response back until a buffer is full, unless told.
    "X-Accel-Buffering": "no",
}


class EventStream:
    """The response to one request, begun; it lasts until its outbox is drained, or the client is gone.

    `over` is called once, when nothing is written any more.
    """

    __slots__ = (
        "_chunks",
        "_edge",
        "_ended",
        "_loop",
        "_outbox",
        "_over",
        "_scheduled",
        "_sent",
        "_waiter",
        "written",
    )

    def __init__(
        self,
        request: http.Request,
        edge: TransportContext,
        transport: str,
        outbox: SendBuffer,
        *,
        headers: Mapping[str, str] | None = None,
        over: Callable[[], None] | None = None,
    ) -> None:
        self._edge = edge
        self._outbox = outbox
        self._over = over
        self._sent = edge.metrics.bytes_out.labels(transport)
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._scheduled = False
        self._chunks = request.begin(200, {**_HEADERS, **headers} if headers else _HEADERS)
        self._chunks.ready, self._chunks.gone = self._stir, self._end
        outbox.when_woken = self._stir
        self.written = self._loop.time()
        edge.keep_alive.add(self)
        if request.gone:
            self._end()
        self._stir()

    async def ended(self) -> http.Streamed:
        """Returns when nothing is written any more; once at most. Cancelled, it hangs up."""
        if not self._ended:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                if not self._ended:
                    self._chunks.reset()
                    self._end()
        return http.Streamed()

    def keep_alive(self) -> None:
        # To whoever does not take what there is, a sign of life is no help.
        if not (self._chunks.full or self._ended):
            self.written = self._loop.time()
            self._chunks.write(KEEP_ALIVE)
            self._sent.inc(len(KEEP_ALIVE))

    def _stir(self) -> None:
        if not (self._scheduled or self._ended):
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        outbox = self._outbox
        while not (self._chunks.full or self._ended):
            frames = outbox.take()
            if frames:
                self.written = self._loop.time()
                self._sent.inc(len(frames))
            if outbox.closed and outbox.drained:
                self._chunks.end(frames)
                self._end()
                break
            self._chunks.write(frames)
            if not outbox.may_have_more:
                break
        self._scheduled = False

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._edge.keep_alive.discard(self)
        self._outbox.discard()
        if self._over is not None:
            self._over()
