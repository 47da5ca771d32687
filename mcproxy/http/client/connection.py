"""One connection to a server, which carries one request and its response at a time.

    IDLE --REQUEST_SENT--> WAITING --BYTES_READ--> READING --RESPONSE_READ--> IDLE
    READING --BODY_FULL--> FULL --BODY_TAKEN--> READING     (reading is paused in FULL, and nowhere else)
    READING, FULL --RELEASED--> DROPPING --RESPONSE_READ--> IDLE        any --LOST--> CLOSED

It is free again when all of a response arrived, read or not. It hangs up on a server that sends more than was asked
for, and when a response is given up. Repeats nothing, and has no time-out: cancel a request to stop waiting for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, cast

import httptools

from mcproxy.http.client.heads import NO_HEAD, WITHOUT_BODY, ResponseHead, read_head
from mcproxy.http.client.response import ClientResponse, ConnectionBroken
from mcproxy.http.head_cache import HeadCache, plain_head

MAX_HEAD: Final = 64 * 1024
"""Bytes in a row that may be no body: heads, interim responses, trailers, and what separates chunks."""
DROPPING_TIME: Final = 1.0
"""Seconds in which a released response must end, for its connection to serve again."""
KEEP_ALIVE: Final = 15.0
"""Seconds that a connection waits for another request; servers mostly wait longer."""

_HTTP_2_FRAMES: Final = frozenset({b"\x04", b"\x07"})
"""The types of a frame by which an HTTP/2 server begins, or refuses what is no HTTP/2: SETTINGS, GOAWAY (RFC 9113)."""
_WHOLE_CONNECTION: Final = bytes(4)
_TOO_MUCH: Final = "it sends more than it was asked for"


class ClientConnectionState(Enum):
    """What a connection does, and whether it reads."""

    __hash__ = object.__hash__  # Enum's own is written in Python, and responses are read often

    IDLE = "free for a request"
    WAITING = "a request was sent, and nothing of its response arrived"
    READING = "a response is read"
    FULL = "a response waits for its reader: reading is paused"
    DROPPING = "the rest of a released response is thrown away"
    CLOSED = "the connection is gone"


class ClientConnectionEvent(Enum):
    """What happens to a connection."""

    __hash__ = object.__hash__

    REQUEST_SENT = "a request was sent"
    BYTES_READ = "the first bytes of a response arrived"
    BODY_FULL = "more bytes than may (`max_unread`) wait for the reader"
    BODY_TAKEN = "the reader took what was there"
    RELEASED = "the reader wants no more"
    RESPONSE_READ = "all of a response arrived"
    LOST = "the connection ended, or was given up"


# By these names, since an attribute of an enum costs a call of its metaclass.
IDLE, WAITING, READING, FULL, DROPPING, CLOSED = ClientConnectionState
REQUEST_SENT, BYTES_READ, BODY_FULL, BODY_TAKEN, RELEASED, RESPONSE_READ, LOST = ClientConnectionEvent

TRANSITIONS: Final[Mapping[ClientConnectionState, Mapping[ClientConnectionEvent, ClientConnectionState]]] = {
    IDLE: {REQUEST_SENT: WAITING, LOST: CLOSED},
    WAITING: {BYTES_READ: READING, RESPONSE_READ: IDLE, LOST: CLOSED},
    READING: {BODY_FULL: FULL, RELEASED: DROPPING, RESPONSE_READ: IDLE, LOST: CLOSED},
    FULL: {BODY_TAKEN: READING, RELEASED: DROPPING, RESPONSE_READ: IDLE, LOST: CLOSED},
    DROPPING: {RESPONSE_READ: IDLE, LOST: CLOSED},
    CLOSED: {},
}


class ClientConnection(asyncio.Protocol):
    """`on_idle` is called whenever it is free for another request; `on_closed` once, when it never will be again.

    The latter is also given True if the server hung up without answering the request. `heads` belongs to the
    server; `keep_alive` is how many seconds it may be idle, or less where the server says so.
    """

    __slots__ = (
        "_drop_timer",
        "_fault",
        "_fields",
        "_heads",
        "_idle_until",
        "_is_interim",
        "_keep_alive",
        "_lines",
        "_loop",
        "_missing",
        "_on_closed",
        "_on_idle",
        "_parser",
        "_reason",
        "_response",
        "_transport",
        "_without_body",
        "rested",
        "state",
    )

    def __init__(
        self,
        on_idle: Callable[[ClientConnection], None],
        on_closed: Callable[[ClientConnection, bool], None],
        heads: HeadCache[ResponseHead] | None = None,
        keep_alive: float = KEEP_ALIVE,
    ) -> None:
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._heads: HeadCache[ResponseHead] = HeadCache() if heads is None else heads
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self.state = IDLE
        self.rested = 0.0
        """Seconds for which it had been idle when its pool took it last."""
        self._idle_until = self._loop.time() + keep_alive
        self._response: ClientResponse | None = None
        self._fault: str | None = None
        """Why what arrived is not what was asked for."""
        self._drop_timer: asyncio.TimerHandle | None = None
        self._reason = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._without_body = 0
        """Bytes that the parser was fed in a row without reading any of a body."""
        self._lines = 0
        """Fields of the head that the parser read last."""
        self._missing = 0
        """Bytes of a body that the parser does not read."""
        self._is_interim = False

    # For its pool

    @property
    def is_idle(self) -> bool:
        """True if it is free for a request."""
        return self.state is IDLE

    @property
    def is_closed(self) -> bool:
        """True if it serves no more: it is closed, or lost."""
        return self.state is CLOSED

    def has_expired(self, now: float) -> bool:
        """True if it has been idle for too long to serve again. `now`: the loop's time."""
        return self.state is IDLE and now >= self._idle_until

    async def exchange(self, request: bytes) -> ClientResponse:
        """Send a request and wait for the head of its response. Raises ConnectionBroken.

        Cancelled, it gives up the connection.
        """
        assert self.state is IDLE, "one request at a time"
        self.state = TRANSITIONS[self.state][REQUEST_SENT]
        self._response = response = ClientResponse(self, self._loop)
        self._without_body = 0
        self._transport.write(request)
        try:
            while response.head is NO_HEAD:
                await response.changed()
        except BaseException:
            # If the response is complete, the connection is free already, and may be at the next.
            response.close()
            raise
        return response

    def close(self) -> None:
        """End it; TLS says goodbye."""
        self._transport.close()
        self._lose("it was closed")

    # For its response: response.ResponseSource

    def abort(self) -> None:
        """End it at once, and what is under way on it."""
        self._transport.abort()
        self._lose("it was given up")

    def release(self, response: ClientResponse) -> None:
        if response is self._response and (self.state is READING or self.state is FULL):
            response.drop()
            self._apply(RELEASED)
            self._drop_timer = self._loop.call_later(DROPPING_TIME, self.abort)

    def update_reading(self) -> None:
        """Pause reading exactly while more than `ClientResponse.max_unread` bytes wait for their reader."""
        response = self._response
        if self.state is READING:
            if response is not None and response.unread > response.max_unread:
                self._apply(BODY_FULL)
        elif self.state is FULL and response is not None and response.unread <= response.max_unread:
            self._apply(BODY_TAKEN)

    def _apply(self, event: ClientConnectionEvent) -> None:
        """Takes an edge that may begin or end at FULL."""
        before = self.state
        self.state = after = TRANSITIONS[before][event]
        if after is FULL:
            self._transport.pause_reading()
        elif before is FULL and after is not CLOSED and not self._transport.is_closing():
            self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses of it

    def data_received(self, data: bytes) -> None:
        if self.state is CLOSED:
            return
        response, is_first = self._response, self.state is WAITING
        # The parser stands between two responses here, and still does after one of which it has seen nothing.
        if is_first and response is not None:
            for known in self._heads.heads:
                found = known.read(data)
                if found is None or len(found[1]) > found[0]:
                    continue
                length, body = found
                if len(body) < length:
                    self._begin(response, known.parsed, length, body)
                    return
                response.finish_with(known.parsed, body)
                self.state = TRANSITIONS[self.state][RESPONSE_READ]
                self._free(known.parsed)
                return
            self._apply(BYTES_READ)
        if self._missing and response is not None:
            self._read_body(response, data)
        else:
            self._parse(data)
        if self.state is CLOSED:
            return
        if self._fault is not None:
            self._transport.abort()
            self._lose(self._fault)
        elif response is not None and response.is_complete:
            if is_first:
                self._remember(response.head, data)
            self._apply(RESPONSE_READ)
            self._free(response.head)
        else:
            self.update_reading()

    def _begin(self, response: ClientResponse, head: ResponseHead, length: int, body: bytes) -> None:
        """Takes a head that was recognised, and the first bytes of its body."""
        self._apply(BYTES_READ)
        self._missing = length - len(body)
        response.begin(head, length)
        response.feed(body)
        self.update_reading()

    def _remember(self, head: ResponseHead, data: bytes) -> None:
        """Remembers the head of a response. `data` is all of it as it arrived, and nothing else but interim ones."""
        # Where the first head is that of an interim response (RFC 9110, section 15.2), what follows it is no body.
        if (
            not data.startswith(b"HTTP/1.1 %d " % head.status)
            or head.status in WITHOUT_BODY
            or "transfer-encoding" in head.fields
        ):
            return
        plain = plain_head(data, self._lines)
        if plain is not None:
            self._heads.clear()
            self._heads.add(head, head.fields, plain)

    def _read_body(self, response: ClientResponse, data: bytes) -> None:
        """Reads what is missing of a body whose head was recognised."""
        body = data[: self._missing]
        self._missing -= len(body)
        response.feed(body)
        if not self._missing:
            response.finish()
        if len(body) < len(data):
            self._fail(_TOO_MUCH)

    def _parse(self, data: bytes) -> None:
        self._without_body += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("it switches to a protocol that was not asked for")
        except httptools.HttpParserError as error:
            if data[3:4] in _HTTP_2_FRAMES and data[5:9] == _WHOLE_CONNECTION:
                self._fail("it speaks only HTTP/2, and the gateway HTTP/1.1: have it accept HTTP/1.1 too")
            self._fail(f"it sends something other than HTTP: {error}")
        if self._without_body > MAX_HEAD:
            self._fail(f"its headers are larger than {MAX_HEAD} bytes")

    def eof_received(self) -> None:
        response = self._response
        if response is not None and response.head.ends_with_connection:
            response.finish()
        self._lose("the server closed it", by_server=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc) if exc is not None and str(exc) else "the server closed it", by_server=True)

    # httptools.HttpResponseParser

    def on_message_begin(self) -> None:
        if self._response is None or self._response.is_complete:
            self._fail(_TOO_MUCH)

    def on_status(self, status: bytes) -> None:
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        head = read_head(status, self._reason, self._fields)
        self._lines = len(self._fields)
        self._reason, self._fields = b"", []
        # RFC 9110, section 15.2: a client must take any number of interim responses before the final one.
        self._is_interim = status < 200
        if self._fault is None and self._response is not None and not self._is_interim:
            self._without_body = 0
            self._response.begin(head)

    def on_body(self, body: bytes) -> None:
        self._without_body = 0
        if self._fault is None and self._response is not None and self.state is not CLOSED:
            self._response.feed(body)

    def on_message_complete(self) -> None:
        self._fields = []
        if self._fault is not None or self._response is None or self._is_interim or self.state is CLOSED:
            return
        self._without_body = 0
        self._response.finish()
        if not self._parser.should_keep_alive():
            self.close()

    def _fail(self, fault: str) -> None:
        """Notes what the server did wrong. The first fault is told: later ones may follow from it."""
        self._fault = self._fault or fault

    def _free(self, head: ResponseHead) -> None:
        self._response = None
        if self._drop_timer is not None:
            self._drop_timer.cancel()
            self._drop_timer = None
        self._idle_until = self._loop.time() + min(self._keep_alive, head.kept_for)
        self._on_idle(self)

    def _lose(self, reason: str, *, by_server: bool = False) -> None:
        if self.state is CLOSED:
            return
        is_unanswered = self.state is WAITING
        self._apply(LOST)
        if self._drop_timer is not None:
            self._drop_timer.cancel()
            self._drop_timer = None
        response = self._response
        if response is not None and not response.is_complete:
            response.fail(ConnectionBroken(reason, is_unanswered=is_unanswered))
        self._on_closed(self, by_server and is_unanswered)
