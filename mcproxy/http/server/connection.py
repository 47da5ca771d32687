"""One connection: requests are read ahead, handled one after the other, and answered in their order.

It runs on the table of `states`. It leaves FULL again without help of its handlers: bodies are taken when a handler
waits for one, when it is given its request, and when it returns. A client that sends more requests than may wait, or
reads nothing of what it is sent, is disconnected. Knows no path.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from typing import Any, Final, cast

import structlog

from mcproxy.http.server.chunked import ChunkedBody
from mcproxy.http.server.heads import WITHOUT_BODY, head
from mcproxy.http.server.messages import Answered, Request, Response, ip_host, wake
from mcproxy.http.server.owner import ConnectionOwner
from mcproxy.http.server.reader import BETWEEN, HEAD, STOPPED, RequestReader
from mcproxy.http.server.states import (
    ALL_ANSWERED,
    ANSWERING,
    BODIES_FULL,
    BODIES_TAKEN,
    CLIENT_SHUT_DOWN,
    CLOSED,
    CLOSING,
    DONE,
    DONE_EARLY,
    FULL,
    IDLE,
    LAST,
    LEFT,
    LINGERING,
    LOST,
    READING_STOPPED,
    REQUEST_READ,
    TRANSITIONS,
    ConnectionEvent,
)

log = structlog.get_logger()

MAX_UNREAD: Final = 256 * 1024
"""Bytes of bodies that may wait for their handlers; beyond, reading is paused."""
LAST_BYTES: Final = 64 * 1024
"""Bytes of a body that are still taken behind its response, so that the connection can serve again."""
LINGER: Final = 2.0
"""Seconds that a client has to notice a response that came before it had sent all (RFC 9112, section 9.6)."""
COPIED: Final = 16 * 1024
"""Bytes of a body that are copied behind their head; longer ones are written separately."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_RESET: Final = struct.pack("ii", 1, 0)
"""`struct linger`: reset on closing."""

_READING: Final = frozenset({IDLE, ANSWERING, FULL})
_BUSY: Final = frozenset({ANSWERING, FULL, LAST, LEFT})


class ServerConnection(asyncio.Protocol):
    """The connection of one client. Implements `messages.RequestTransport` and `owner.OwnedConnection`."""

    __slots__ = (  # there are many connections, and each request asks for most of these
        "_bounds",
        "_certificate_timer",
        "_chunks",
        "_deadline",
        "_has_task",
        "_head_timer",
        "_heads_read",
        "_idle_since",
        "_loop",
        "_owner",
        "_reader",
        "_served",
        "_transport",
        "_waiter",
        "certificate",
        "full",
        "max_body",
        "peer",
        "state",
        "written",
    )

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._bounds = owner.bounds
        self.max_body = owner.bounds.max_body
        """Bytes that a body may have."""
        self.peer: str | None = None
        self.certificate: Mapping[str, Any] | None = None
        self.state = IDLE
        self.full = False
        """True while the client has not taken enough of what was written."""
        self.written = 0
        """Bytes of the last long piece that was written."""
        self._reader = RequestReader(self)
        self._served: Request | None = None
        """The request that a handler runs for."""
        self._chunks: ChunkedBody | None = None
        """The response to it, or to a request before whose handler is through, if it is a stream."""
        self._has_task = False
        self._waiter: asyncio.Future[None] | None = None
        """What `serve` waits for, if there is nothing to do."""
        self._idle_since = self._loop.time()
        self._deadline: asyncio.TimerHandle | None = None
        """Resets the connection."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._heads_read = 0
        """How many heads had been read when `_head_timer` was started."""
        self._certificate_timer: asyncio.TimerHandle | None = None

    def _apply(self, event: ConnectionEvent) -> None:
        """Takes an edge that may begin or end at FULL."""
        before = self.state
        self.state = after = TRANSITIONS[before][event]
        if (before is FULL or after is FULL) and not self._transport.is_closing():
            if after is FULL:
                self._transport.pause_reading()
            elif after is not LEFT:
                self._transport.resume_reading()

    # For requests: messages.RequestTransport

    @property
    def is_disconnected(self) -> bool:
        return self.state is CLOSED or self.state is LEFT

    def transport_info(self, name: str) -> Any:
        return self._transport.get_extra_info(name)

    def start_stream(self, request: Request, status: int, fields: Mapping[str, str]) -> ChunkedBody:
        assert request is self._served, "a request is answered once, and in its turn"
        assert self._chunks is None, "it is being answered already"
        chunked = not request.is_http_1_0
        is_last = self._is_last(request)
        framing = b"Transfer-Encoding: chunked\r\n" if chunked else b""
        start = head(status, fields, request.response_fields, framing=framing, close=is_last)
        self._chunks = chunks = ChunkedBody(self, self._transport, start, chunked=chunked, is_last=is_last)
        return chunks

    def send_continue(self) -> None:
        self._write(_CONTINUE)

    def update_reading(self) -> None:
        """Pause reading exactly while more than `MAX_UNREAD` bytes wait for handlers."""
        if self.state is ANSWERING:
            if self._unread() > MAX_UNREAD:
                self._apply(BODIES_FULL)
        elif self.state is FULL and self._unread() <= MAX_UNREAD:
            self._apply(BODIES_TAKEN)

    def _unread(self) -> int:
        """Bytes of bodies that wait for handlers. A whole body is given to the handler with its request."""
        served = self._served
        mine = 0 if served is None or served.is_complete else served.unread
        return mine + sum(request.unread for request in self._reader.requests)

    def remember(self, request: Request, note: object, generation: object, gaps: frozenset[str]) -> None:
        if self.state in _READING:
            self._reader.remember(request, note, generation, gaps)

    # owner.OwnedConnection

    @property
    def is_idle(self) -> bool:
        return self.state is IDLE

    def has_expired(self, now: float) -> bool:
        return self.is_idle and now - self._idle_since > self._bounds.idle

    @property
    def held(self) -> int:
        """Bytes that are kept until the client has taken the last of them: what is written as a whole is kept whole."""
        return max(self.written, self.unsent)

    @property
    def unsent(self) -> int:
        """Bytes that were written and that the client has not taken."""
        return self._transport.get_write_buffer_size()

    def forget(self) -> None:
        self._reader.forget()

    async def serve(self) -> None:
        request: Request | None
        answer: Answered | None
        waiting = self._reader.requests
        while self.state is not CLOSED:
            if self.full or not waiting:
                # Keep no request alive longer than its answer.
                request = answer = None
                self._waiter = self._loop.create_future()
                await self._waiter
                continue
            request = self._served = waiting.pop(0)
            if self.state is FULL:
                self.update_reading()
            try:
                answer = await self._owner.handler(request)
            except Exception:
                # A crash costs only its own request an answer.
                log.exception("a request crashed", path=request.path)
                answer = self._owner.refuse(500, "internal error of the server: see its log")
            request.on_disconnect = self._served = None
            chunks = self._chunks
            is_last = False
            if isinstance(answer, Response):
                is_last = self._respond(request, answer)
            elif chunks is not None:
                if not chunks.has_ended:
                    self._detach(request)
                    return
                is_last = chunks.is_last
            self._chunks = None
            if not request.is_complete:
                request.drop()
            self._answered(is_last=is_last, all_sent=request.is_complete)

    def close(self) -> None:
        if self.state is CLOSING or self.state is CLOSED:
            return
        if self._chunks is not None:
            self._chunks.disconnected()
        self._end_reading()
        self._apply(DONE)
        self._transport.close()
        self._set_deadline(self._bounds.write_timeout)

    def reset(self) -> None:
        if self.state is CLOSED:
            return
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            # Else the kernel would keep what the client does not read, and go on offering it.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def refuse(self, status: int, sentence: str) -> None:
        in_body = self._reader.receiving is not None
        self._reader.stop()
        self._stop_reading(status, sentence, in_body=in_body)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses of it
        self.peer = ip_host(transport.get_extra_info("peername"))
        self.certificate = certificate = transport.get_extra_info("peercert") or None
        if certificate:
            seconds = ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()
            self._certificate_timer = self._loop.call_later(max(seconds, 0), self._expire_certificate)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.receive(data)
        requests = reader.requests
        if requests and self.state is IDLE:
            self.state = TRANSITIONS[self.state][REQUEST_READ]
            self._proceed()
        elif requests:
            self.update_reading()
        if reader.state is not BETWEEN or self._head_timer is not None or len(requests) > 1:
            self._follow_reader()

    def eof_received(self) -> bool:
        """A client that shuts down its side may be gone or not: handlers are told, and what they answer is sent.

        A stream ends at once.
        """
        if self.state not in _BUSY or self._chunks is not None:
            self.close()
            return False
        self._reader.stop()
        self._apply(CLIENT_SHUT_DOWN)
        if self._served is not None and self._served.on_disconnect is not None:
            self._served.on_disconnect()
        return self._transport.get_extra_info("ssl_object") is None  # TLS closes both sides together

    def connection_lost(self, exc: Exception | None) -> None:
        served, is_news = self._served, not self.is_disconnected
        self._end_reading()
        self._reader.forget()
        self._set_deadline(None)
        self._apply(LOST)
        if self._chunks is not None:
            self._chunks.disconnected()
        if is_news and served is not None and served.on_disconnect is not None:
            served.on_disconnect()
        wake(self._waiter)
        self._owner.lost(self)

    def pause_writing(self) -> None:
        self.full = True
        self._set_deadline(self._bounds.write_timeout)
        self._owner.unsent.add(self)

    def resume_writing(self) -> None:
        self.full, self.written = False, 0
        self._owner.unsent.discard(self)
        if self.state not in (LINGERING, CLOSING):
            self._set_deadline(None)
        if self._chunks is not None:
            self._chunks.ready()
        wake(self._waiter)

    # What follows from what was read

    def _follow_reader(self) -> None:
        """Takes the rarer results of reading: a request in parts, several at once, or one that is refused."""
        reader = self._reader
        if reader.state is STOPPED:
            if self.state in _READING:
                status, sentence, in_body = reader.refusal or (400, "", True)
                self._stop_reading(status, sentence, in_body=in_body)
            return
        self.update_reading()
        self._watch_head()

    def _watch_head(self) -> None:
        """Starts the deadline of a head with its first byte, and stops it with its last."""
        reader = self._reader
        if self._head_timer is not None:
            if reader.state is HEAD and reader.heads_read == self._heads_read:
                return
            self._head_timer.cancel()
            self._head_timer = None
        if reader.state is HEAD:
            self._heads_read = reader.heads_read
            self._head_timer = self._loop.call_later(self._bounds.head_timeout, self._refuse_late_head)

    def _refuse_late_head(self) -> None:
        self._head_timer = None
        self.refuse(408, f"the header block did not arrive within {self._bounds.head_timeout:g} s")

    def _expire_certificate(self) -> None:
        """Ends the connection, as its client's certificate is over; a request that is handled is answered first."""
        self._certificate_timer = None
        if self.state is IDLE:
            self.close()
        elif self._chunks is not None or self._served is None:
            self.reset()
        else:
            self._end_reading()
            if self.state in _READING:
                self._apply(READING_STOPPED)

    def _stop_reading(self, status: int, sentence: str, *, in_body: bool) -> None:
        """Ends reading. `in_body`: what was read last belongs to a request, which has an answer of its own."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if self.state in _BUSY:
            if self.state in _READING:
                self._apply(READING_STOPPED)
            return
        if not in_body:
            refusal = self._owner.refuse(status, sentence)
            framing = b"Content-Length: %d\r\n" % len(refusal.body)
            self._write(head(status, refusal.fields, {}, framing=framing, close=True) + refusal.body)
        self._linger()

    # What follows from what was answered

    def _proceed(self) -> None:
        """Has the next request handled."""
        waiter = self._waiter
        if not self._has_task:
            self._has_task = True
            self._owner.serve(self)
        elif waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _detach(self, request: Request) -> None:
        """Has a stream go on without its handler.

        Streams may idle for hours, and are many: a task for each, and its request, are more than all the rest.
        """
        self._has_task = False
        self.forget()
        request.drop()
        if self.state is LEFT:
            self.close()  # nothing would tell that its client is gone

    def stream_ended(self) -> None:
        """Takes note that a stream was written to its end; if its handler is still there, `serve` goes on."""
        chunks = self._chunks
        if chunks is not None and self._served is None and self.state is not CLOSED:
            self._chunks = None
            self._answered(is_last=chunks.is_last, all_sent=self._reader.receiving is None)
            if self.state in _BUSY:
                self._proceed()

    def _respond(self, request: Request, response: Response) -> bool:
        """Writes a response. Returns whether it is the last."""
        if self._chunks is not None:
            # Its handler crashed in the middle of a stream: the client, and the task that writes it, are told.
            self._chunks.disconnected()
            self.reset()
            return False
        if self.state is CLOSED:
            return False
        # Most are neither: `_is_last` is for the rest.
        is_plain = self.state is ANSWERING and request.is_complete and not (request.wants_close or self._owner.closing)
        is_last = not is_plain and self._is_last(request)
        body = response.body
        framing = b"" if response.status in WITHOUT_BODY else b"Content-Length: %d\r\n" % len(body)
        start = head(response.status, response.fields, request.response_fields, framing=framing, close=is_last)
        if request.method == "HEAD":
            self._transport.write(start)
        elif len(body) > COPIED:
            self.written = len(body)
            self._transport.writelines((start, body))
        else:
            self._transport.write(start + body)
        return is_last

    def _is_last(self, request: Request) -> bool:
        if request.wants_close:
            return True
        state = self.state
        if (self._owner.closing or not (state is ANSWERING or state is FULL)) and not self._reader.requests:
            return True
        if request.is_complete:
            return False
        missing = request.missing
        return missing is None or missing > LAST_BYTES

    def _answered(self, *, is_last: bool, all_sent: bool) -> None:
        """Goes on behind a response. `all_sent`: the client has sent all of the request."""
        self._idle_since = self._loop.time()
        has_more = bool(self._reader.requests)
        if not is_last and (has_more or (self.state in _READING and not self._owner.closing)):
            if not has_more:
                self.state = TRANSITIONS[self.state][ALL_ANSWERED]
        elif all_sent and self._reader.refusal is None:
            self.close()
        else:
            self._linger()

    def _linger(self) -> None:
        """Ends this side, and reads on for a moment: a reset might overtake the response (RFC 9112, section 9.6)."""
        if self.state is LEFT:
            self.close()
        if self.state not in _READING and self.state is not LAST:
            return
        self._end_reading()
        self._apply(DONE_EARLY)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._set_deadline(LINGER)

    def _end_reading(self) -> None:
        """Ends reading, and drops the requests that wait to be handled."""
        self._reader.stop()
        self._reader.requests.clear()
        for timer in (self._head_timer, self._certificate_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._certificate_timer = None

    def _write(self, data: bytes) -> None:
        if self.state is not CLOSED:
            self._transport.write(data)

    def _set_deadline(self, seconds: float | None) -> None:
        """Resets it after so many seconds from now."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self._loop.call_later(seconds, self.reset)
