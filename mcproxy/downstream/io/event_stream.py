"""An SSE response while it is written: flushed once per turn of the loop, kept alive, ended with its send buffer.

While a client does not keep up, nothing is taken out of the buffer, so that changes coalesce (requirement R23). Knows
nothing of events' contents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.responses import EVENTS, Accepted
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.http import server as http
from mcproxy.protocol.sse import KEEP_ALIVE

_HEADERS: Final = {
    "Content-Type": EVENTS,
    "Cache-Control": "no-store",
    # nginx and its like hold a response back until a buffer is full, unless told not to (requirement R59).
    "X-Accel-Buffering": "no",
}


class EventStream:
    """The response to one request; it lasts until its buffer is drained, or the client is gone.

    `on_end` is called once, after the last write.
    """

    __slots__ = (
        "_chunks",
        "_context",
        "_ended",
        "_loop",
        "_on_end",
        "_scheduled",
        "_send_buffer",
        "_sent",
        "_waiter",
        "written",
    )

    def __init__(
        self,
        request: http.Request,
        context: TransportContext,
        transport: str,
        send_buffer: SendBuffer,
        *,
        headers: Mapping[str, str] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self._context = context
        self._send_buffer = send_buffer
        self._on_end = on_end
        self._sent = context.metrics.bytes_out.labels(transport)
        self._loop = context.loop
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._scheduled = False
        self._chunks = request.start_stream(200, {**_HEADERS, **headers} if headers else _HEADERS)
        self._chunks.ready, self._chunks.on_disconnect = self._schedule, self._end
        send_buffer.on_ready = self._schedule
        self.written = self._loop.time()
        context.keep_alive.add(self)
        if request.is_disconnected:
            self._end()
        self._schedule()

    async def wait_ended(self) -> http.Streamed:
        """Returns after the last write; only one task may wait. Cancelling it resets the connection."""
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
        # A client that does not read what is there needs no keep-alive.
        if not (self._chunks.full or self._ended):
            self.written = self._loop.time()
            self._chunks.write(KEEP_ALIVE)
            self._sent.inc(len(KEEP_ALIVE))

    def _schedule(self) -> None:
        if not (self._scheduled or self._ended):
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        send_buffer = self._send_buffer
        while not (self._chunks.full or self._ended):
            frames = send_buffer.take()
            if frames:
                self.written = self._loop.time()
                self._sent.inc(len(frames))
            if send_buffer.closed and send_buffer.drained:
                self._chunks.end(frames)
                self._end()
                break
            self._chunks.write(frames)
            if not send_buffer.may_have_more:
                break
        self._scheduled = False

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._context.keep_alive.discard(self)
        self._send_buffer.discard()
        if self._on_end is not None:
            self._on_end()


class LateReply(msgspec.Struct, eq=False, kw_only=True):
    """The response to a POST, which chooses late between JSON and an event stream (requirements R55, R62).

    JSON if the answer comes first; a stream if another message does, or no message for `stream_after` seconds. A
    subclass says what is sent on the stream, and whether that can be resumed.
    """

    context: TransportContext
    request: http.Request
    accepted: Accepted
    """The forms that the client accepts: one of them at least (`responses.check_accept`)."""
    events: EventStream | None = None
    """The event stream, once begun."""
    settled: bool = False
    """Whether no stream can begin any more: the form is chosen, or the client is gone."""

    def begin(self) -> None:
        """Chooses at once if the client accepts one form only, else later."""
        if not self.accepted.json:
            self.begin_stream()
        elif self.accepted.events:
            self.context.stream_deadlines.add(self)

    def expired(self) -> None:
        """Chooses the stream, as no message came within `stream_after` seconds."""
        self.begin_stream()

    def begin_stream(self) -> None:
        """Chooses the stream, unless the form is chosen already."""
        if not self.settled:
            self.settle()
            self.events = self.open_stream()

    def open_stream(self) -> EventStream:
        """Opens the stream with what there is to send."""
        raise NotImplementedError

    def settle(self) -> None:
        """Lets no stream begin any more. Idempotent."""
        self.settled = True
        self.context.stream_deadlines.discard(self)
