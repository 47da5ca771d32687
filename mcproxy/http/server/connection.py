"""One connection of a client, which carries one exchange after the other: a request, and what its handler answers.

A client that says more than may wait is hung up on, and so is one that does not take what it is sent. What is no HTTP
is refused, and nothing more is heard on that connection. Knows no path and no message.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Protocol, cast

import httptools
import structlog

from mcproxy.http.server.chunked import ChunkedBody
from mcproxy.http.server.head_cache import (
    LONGEST_KNOWN,
    MOST_BYTES,
    MOST_KNOWN,
    MOST_LINES,
    KnownHead,
    ParsedHead,
    known_head,
)
from mcproxy.http.server.headers import WITHOUT_BODY, Headers, head, read_fields, read_target
from mcproxy.http.server.messages import Answered, Request, RequestHandler, Response

log = structlog.get_logger()

MAX_HEAD: Final = 64 * 1024
"""Bytes that may come on end and be no body: heads, trailers, and what parts chunks."""
MOST_WAITING: Final = 16
"""Requests of one connection that may wait for the one before them."""
LAST_BYTES: Final = 64 * 1024
"""Of a body that nobody reads, what is still taken so that its connection can serve again."""
LAST_MOMENT: Final = 2.0
"""Seconds in which a client may notice that it was answered before it had said all, and hang up."""
MUCH: Final = 16 * 1024
"""Bytes of a body that are not worth copying to send them with their head."""

TOO_LARGE: Final = f"what comes before the body is larger than {MAX_HEAD} bytes"

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_RESET: Final = struct.pack("ii", 1, 0)
"""`struct linger`: on closing, wait for nothing."""

MakeRefusal = Callable[[int, str], Response]
"""What is answered to a request that reaches no handler: with this status, for that reason."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a connection goes by from its beginning to its end."""

    max_body: int
    """Bytes of one request's body."""
    idle: float
    """Seconds without a request, or with part of a head."""
    write_timeout: float
    """Seconds with nothing taken of what was sent."""
    connections: int
    """How many there may be."""


class ConnectionOwner(Protocol):
    """Whose connections they are."""

    handler: RequestHandler
    refuse: MakeRefusal

    @property
    def bounds(self) -> Bounds: ...

    closing: bool
    """Whether no connection serves another request."""

    def opened(self, connection: ServerConnection) -> None: ...

    def lost(self, connection: ServerConnection) -> None: ...

    def serve(self, connection: ServerConnection) -> None:
        """Has `ServerConnection.serve` run until it returns."""


class ServerConnection(asyncio.Protocol):
    """Implements `messages.RequestTransport`."""

    __slots__ = (  # there are many connections, and each request asks for most of these
        "_begun",
        "_between",
        "_bounds",
        "_chunks",
        "_closing",
        "_deadline",
        "_declined",
        "_facts",
        "_held_back",
        "_idle_since",
        "_known",
        "_last",
        "_length",
        "_lines",
        "_loop",
        "_lost",
        "_missing",
        "_owner",
        "_parsed",
        "_parser",
        "_receiving",
        "_refusal",
        "_served",
        "_serving",
        "_since_body",
        "_target",
        "_transport",
        "_waiter",
        "_waiting",
        "full",
        "most",
    )

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._bounds = owner.bounds
        self.most = owner.bounds.max_body
        """Bytes that a body may have."""
        self._waiting: list[Request] = []
        self._served: Request | None = None
        self._chunks: ChunkedBody | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._serving = False
        self._lost = False
        self._closing = False
        self._last = False
        self.full = False
        """Whether its client should first take what was written."""
        self._held_back = False
        self._deadline: asyncio.TimerHandle | None = None
        self._facts: dict[str, Any] = {}
        self._idle_since = self._loop.time()
        self._since_body = 0
        self._receiving: Request | None = None
        self._declined = b""
        """A head to be read again."""
        self._target = b""
        self._lines: list[tuple[bytes, bytes]] = []
        self._length = 0
        self._between = True
        """Whether the parser has read its last request to the end, and nothing behind it."""
        self._begun: bytes | None = None
        """What the parser reads, where a request begins with it and its head has not been read yet."""
        self._known: list[KnownHead] = []
        self._parsed: ParsedHead | None = None
        self._missing = 0
        """Bytes of the body of a request that the parser has not heard of."""
        self._refusal: tuple[int, str] | None = None

    # messages.Line

    @property
    def gone(self) -> bool:
        return self._lost

    def fact(self, name: str) -> Any:
        if name not in self._facts:
            self._facts[name] = self._transport.get_extra_info(name)
        return self._facts[name]

    def begin(self, request: Request, status: int, fields: Mapping[str, str]) -> ChunkedBody:
        assert request is self._served, "a request is answered once, and in its turn"
        assert self._chunks is None, "it is being answered already"
        self._last = self._is_last(request) or request.is_old
        framing = b"" if request.is_old else b"Transfer-Encoding: chunked\r\n"
        start = head(status, fields, request.added, framing=framing, close=self._last)
        self._chunks = chunks = ChunkedBody(self, self._transport, start, chunked=not request.is_old)
        return chunks

    def invite(self) -> None:
        self.write(_CONTINUE)

    def hold_back(self, full: bool) -> None:
        if full is not self._held_back and not self._lost:
            self._held_back = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def remember(self, request: Request) -> None:
        candidate, request.candidate = request.candidate, None
        if self._lost or candidate is None:
            return
        if isinstance(candidate, ParsedHead):
            self._parsed = candidate
        elif len(self._known) < MOST_KNOWN and candidate.cost + sum(known.cost for known in self._known) <= MOST_BYTES:
            self._known.append(candidate)

    # for its owner

    @property
    def busy(self) -> bool:
        """Whether a request is being served, or waits to be."""
        return self._served is not None or self._chunks is not None or bool(self._waiting)

    async def serve(self) -> None:
        """Has one request after the other handled, until the connection is lost, or streams on without a handler."""
        request: Request | None
        answer: Answered | None
        while not self._lost:
            if self.full or not self._waiting:
                # Nothing of the request before outlasts it.
                request = answer = None
                self._waiter = self._loop.create_future()
                await self._waiter
                continue
            request = self._served = self._waiting.pop(0)
            if request.whole:
                # It was held back while it waited; its client may have more to say, or leave.
                self.hold_back(False)
            try:
                answer = await self._owner.handler(request)
            except Exception:
                # It costs itself an answer, and nobody else anything.
                log.exception("a request crashed", path=request.path)
                answer = self._owner.refuse(500, "internal error of the gateway: see its log")
            request.when_gone = self._served = None
            if isinstance(answer, Response):
                self._respond(request, answer)
            elif self._chunks is not None and not self._chunks.over:
                self._leave_alone(request)
                return
            self._chunks = None
            self._idle_since = self._loop.time()
            if not request.whole:
                request.drop()
            if self._last:
                self._end(heard_out=request.whole)

    def _leave_alone(self, request: Request) -> None:
        """Has a stream go on without its handler.

        Streams may idle for hours, and are many: a task for each, and what it was asked by, are more than all the rest.
        """
        self._serving = False
        self._forget()
        request.drop()

    def expire(self, now: float) -> None:
        """Ends it where it has been idle for too long; in any case it forgets what its client said of itself."""
        self._forget()
        if not (self.busy or self._closing) and now - self._idle_since > self._bounds.idle:
            self.close()

    def _forget(self) -> None:
        self._known.clear()
        self._parsed = None

    def close(self) -> None:
        """Ends it once what was written has been taken."""
        self._closing = True
        if not self._lost:
            self._transport.close()
            self._set_deadline(self._bounds.write_timeout)

    def reset(self) -> None:
        """Ends it at once, and has its client know that it was not in peace."""
        if self._lost:
            return
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            # Or the kernel would keep what the client does not take, and go on offering it.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses of it
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._missing:
            data = self._hear_body(data)
        if data and not (self._between and self._recognise(data)):
            self._parse(data)
        if self._waiting and self._served is None and not self._closing:
            self._proceed()

    def _recognise(self, data: bytes) -> bool:
        """Takes a request whose head is known, as far as it has come. The parser hears nothing of it."""
        for known in self._known:
            if data.startswith(known.before):
                found = known.body_in(data)
                if found is None or found[0] > self.most or len(self._waiting) >= MOST_WAITING:
                    continue
                length, body = found
                missing = length - len(body)
                request = Request(self, known.method, known.target, known.fields, length, body, len(body), not missing)
                self._waiting.append(request)
                if missing:
                    self._receiving, self._missing = request, missing
                return True
        return False

    def _hear_body(self, data: bytes) -> bytes:
        """Of a request whose head was known. Returns what is behind it."""
        assert self._receiving is not None
        body = data[: self._missing]
        self._missing -= len(body)
        self._receiving.feed(body)
        if not self._missing:
            self._received(self._receiving)
        return data[len(body) :]

    def _parse(self, data: bytes) -> None:
        self._since_body += len(data)
        self._begun = data if self._between else None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parser = httptools.HttpRequestParser(self)
            if self._refusal is None:
                self._parse(self._declined + data[upgrade.args[0] :])
                return
        except httptools.HttpParserError as error:
            self._blame(400, f"this is not HTTP: {error}")
        if self._since_body > MAX_HEAD:
            self._blame(431, TOO_LARGE)
        if self._refusal is not None:
            self.turn_away(*self._refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._closing = True
        self._set_deadline(None)
        self._waiting.clear()
        self._forget()
        if self._receiving is not None:
            self._receiving.cut()
        served, chunks = self._served, self._chunks
        if chunks is not None:
            chunks.leave()
        if served is not None and served.when_gone is not None:
            served.when_gone()
        self._stir()
        self._owner.lost(self)

    def pause_writing(self) -> None:
        self.full = True
        self._set_deadline(self._bounds.write_timeout)

    def resume_writing(self) -> None:
        self.full = False
        if not self._closing:
            self._set_deadline(None)
        if self._chunks is not None:
            self._chunks.ready()
        self._stir()

    # httptools.HttpRequestParser

    def on_message_begin(self) -> None:
        self._between = False

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 14 and name.lower() == b"content-length":
            self._length = int(value)  # llhttp has seen to it that there is one, of digits
        else:
            self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        since, self._since_body = self._since_body, 0
        parser = self._parser
        if parser.should_upgrade():
            self._decline_upgrade(parser.get_method())
            return
        method = parser.get_method().decode()
        fields = self._remembered(method)
        is_new = fields is None
        if fields is None:
            fields = read_fields(self._lines)
        hosts = len(fields.all("host"))
        length = None if "transfer-encoding" in fields else self._length
        request = Request(self, method, read_target(self._target), fields, length)
        request.too_large = length is not None and length > self.most
        request.is_last = not parser.should_keep_alive()
        request.is_old = request.is_last and parser.get_http_version() == "1.0"
        if since > MAX_HEAD and len(self._target) + sum(map(len, chain(*self._lines))) > MAX_HEAD:
            self._blame(431, TOO_LARGE)
        elif hosts != 1 and not (hosts == 0 and request.is_old):
            self._blame(400, "there must be one header Host")  # RFC 9112, section 3.2
        elif len(self._waiting) >= MOST_WAITING:
            self._blame(429, f"more than {MOST_WAITING} requests wait on this connection")
        if self._refusal is None:
            self._receiving = request
            self._waiting.append(request)
            if is_new and since <= LONGEST_KNOWN and len(self._lines) <= MOST_LINES:
                self._offer(request)
        # What comes behind the body is no header: RFC 9110, section 6.5.1.
        self._target, self._lines, self._length, self._begun = b"", [], 0, None

    def _remembered(self, method: str) -> Headers | None:
        """The fields of the head that was just read, if it is remembered."""
        parsed = self._parsed
        if parsed is not None and parsed.is_head(method, self._target, self._lines):
            return parsed.fields
        if self._begun is not None:
            for known in self._known:
                if known.begins(self._begun):
                    return known.fields
        return None

    def _offer(self, request: Request) -> None:
        """Nothing is remembered before the application accepts the request (`Request.remember`)."""
        if self._begun is not None and not request.is_last:
            request.candidate = known_head(
                self._begun, len(self._lines) + 1, request.method, request.target, request.fields
            )
        if request.candidate is None:
            request.candidate = ParsedHead(request.method, self._target, self._lines, request.fields)

    def on_body(self, body: bytes) -> None:
        self._since_body = 0
        if self._receiving is not None:
            self._receiving.feed(body)

    def on_message_complete(self) -> None:
        self._since_body = 0
        if self._lines:
            self._lines = []  # trailers
        if self._receiving is not None:
            self._between = not self._receiving.is_last
            self._received(self._receiving)

    def _received(self, request: Request) -> None:
        """Reading goes on behind a whole body, unless its request still waits for its turn."""
        self._receiving = None
        request.finish()
        if request is self._served:
            self.hold_back(False)

    def _decline_upgrade(self, method: bytes) -> None:
        """Has the request read again without the offer of another protocol, which may be ignored (RFC 9110, 7.8)."""
        if method == b"CONNECT":
            self._blame(405, "this is no proxy")
        kept = [b"%b: %b\r\n" % line for line in self._lines if line[0].lower() not in {b"upgrade", b"connection"}]
        if self._length:
            kept.append(b"Content-Length: %d\r\n" % self._length)
        self._declined = b"".join((b"%b %b HTTP/1.1\r\n" % (method, self._target), *kept, b"\r\n"))
        self._target, self._lines, self._length = b"", [], 0

    def _blame(self, status: int, sentence: str) -> None:
        """The first fault is the one that is told: what comes after may follow from it."""
        self._refusal = self._refusal or (status, sentence)

    def turn_away(self, status: int, sentence: str) -> None:
        """Hears no more. What it was heard to ask for is answered, and where that is nothing, why."""
        self._closing = True
        if self._receiving is not None and self._receiving in (self._served, *self._waiting):
            self._receiving.cut()
        if self.busy:
            self._proceed()
            return
        refusal = self._owner.refuse(status, sentence)
        framing = b"Content-Length: %d\r\n" % len(refusal.body)
        self.write(head(status, refusal.fields, {}, framing=framing, close=True) + refusal.body)
        self._linger()

    def streamed(self) -> None:
        """A stream has ended; where its handler is still there, it says so itself."""
        if self._served is None and not self._lost:
            self._chunks = None
            self._idle_since = self._loop.time()
            if self._last:
                self._end(heard_out=self._receiving is None)
            if self._waiting:
                self._proceed()

    def _proceed(self) -> None:
        if self._chunks is not None and self._served is None:
            return  # its turn comes after the stream
        if not self._serving:
            self._serving = True
            self._owner.serve(self)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, *, heard_out: bool) -> None:
        """After the last request."""
        if heard_out:
            self.close()
        elif not self._lost:
            self._linger()

    def _respond(self, request: Request, response: Response) -> None:
        if self._chunks is not None:
            # Its handler crashed in the middle of a stream: whoever writes it is told, and its client.
            self._chunks.leave()
            self.reset()
            return
        if self._lost:
            return
        self._last = self._is_last(request)
        body = response.body
        framing = b"" if response.status in WITHOUT_BODY else b"Content-Length: %d\r\n" % len(body)
        start = head(response.status, response.fields, request.added, framing=framing, close=self._last)
        if request.method == "HEAD":
            self._transport.write(start)
        elif len(body) > MUCH:
            self._transport.writelines((start, body))
        else:
            self._transport.write(start + body)

    def _is_last(self, request: Request) -> bool:
        if request.is_last or self._closing or self._owner.closing:
            return True
        if request.whole:
            return False
        unread = request.unread
        return unread is None or unread > LAST_BYTES

    def _linger(self) -> None:
        """Ends what it says, and takes what still comes for a moment: a reset might overtake the answer."""
        self._closing = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.hold_back(False)
        self._set_deadline(LAST_MOMENT)

    def write(self, data: bytes) -> None:
        if not self._lost:
            self._transport.write(data)

    def _set_deadline(self, seconds: float | None) -> None:
        """How long it lasts at most from now on."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self._loop.call_later(seconds, self.reset)

    def _stir(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
