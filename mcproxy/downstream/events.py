"""Event streams on their way to HTTP clients: written as they come, kept alive, and ended with their outbox.

What comes in one turn of the loop goes in one piece, and while a client does not keep up nothing is taken out of the
box, so that changes coalesce (requirement R23). Knows nothing of what an event says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from mcproxy.downstream import http
from mcproxy.downstream.edge import Edge
from mcproxy.downstream.outbox import Outbox
from mcproxy.downstream.responses import EVENTS
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

    def __init__(
        self,
        request: http.Request,
        edge: Edge,
        transport: str,
        outbox: Outbox,
        *,
        headers: Mapping[str, str] | None = None,
        over: Callable[[], None] | None = None,
    ) -> None:
        self._edge = edge
        self._outbox = outbox
        self._over = over
        self._sent = edge.metrics.bytes_out.labels(transport)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._scheduled = False
        self._chunks = request.begin(200, {**_HEADERS, **headers} if headers else _HEADERS)
        self._chunks.ready, self._chunks.gone = self._stir, self._end
        outbox.when_woken = self._stir
        self._written = self._loop.time()
        self._beat = self._loop.call_later(edge.proxy.keep_alive, self._keep_alive)
        if request.gone:
            self._end()
        self._stir()

    async def ended(self) -> http.Streamed:
        """Returns when nothing is written any more. Cancelled, it hangs up."""
        try:
            await asyncio.shield(self._ended)
        finally:
            if not self._ended.done():
                self._chunks.reset()
                self._end()
        return http.Streamed()

    def _stir(self) -> None:
        if not (self._scheduled or self._ended.done()):
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        outbox = self._outbox
        while not (self._chunks.full or self._ended.done()):
            frames = outbox.take()
            if frames:
                self._write(frames)
            if outbox.drained:
                self._chunks.end()
                self._end()
            elif not frames:
                break
        self._scheduled = False

    def _write(self, frames: bytes) -> None:
        self._written = self._loop.time()
        self._chunks.write(frames)
        self._sent.inc(len(frames))

    def _keep_alive(self) -> None:
        due = self._written + self._edge.proxy.keep_alive
        if self._loop.time() >= due:
            # To whoever does not take what there is, a sign of life is no help.
            if not self._chunks.full:
                self._write(KEEP_ALIVE)
            due = self._loop.time() + self._edge.proxy.keep_alive
        self._beat = self._loop.call_at(due, self._keep_alive)

    def _end(self) -> None:
        if self._ended.done():
            return
        self._ended.set_result(None)
        self._beat.cancel()
        self._outbox.discard()
        if self._over is not None:
            self._over()
