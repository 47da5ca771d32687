"""A request and its response as values: what a handler is given, and what it returns.

Neither knows a socket: `RequestTransport` carries them. The body of a request is buffered up to the server's limit; it
is read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from mcproxy.http.head_cache import KnownHead
from mcproxy.http.headers import NONE, Headers

T = TypeVar("T")


class BodyTooLarge(Exception):
    """A body is larger than `Bounds.max_body`."""


class BodyTimeout(Exception):
    """A body did not arrive in time."""


class BodyIncomplete(Exception):
    """The connection ended, or ceased to be HTTP, in the middle of a body."""


class Response(msgspec.Struct, frozen=True):
    """A whole response. The server adds `Date`, `Content-Length` and `Connection` to its header fields."""

    status: int
    body: bytes = b""
    fields: Mapping[str, str] = NONE


class Chunks(Protocol):
    """The body of a response of unknown length. Writing never waits: check `full` before."""

    ready: Callable[[], None]
    """Called when `full` becomes false."""
    on_disconnect: Callable[[], None]
    """Called once, if the client disconnects before the end."""

    @property
    def full(self) -> bool:
        """True while the client has not taken enough of what was written."""

    def write(self, data: bytes) -> None:
        """Write a piece. The first takes the head of the response along; an empty one sends the head alone."""

    def end(self, data: bytes = b"") -> None:
        """Write the last piece."""

    def reset(self) -> None:
        """Reset the connection, so that the client does not take what was written for the whole."""


class RequestTransport(Protocol):
    """What a request needs of the connection that it came on."""

    max_body: int
    """Bytes that a body may have."""
    peer: str | None
    """As `Request.peer`."""
    certificate: Mapping[str, Any] | None
    """As `Request.certificate`."""

    @property
    def is_disconnected(self) -> bool:
        """True once the client has closed the connection, or its side of it."""

    def transport_info(self, name: str) -> Any:
        """`asyncio.BaseTransport.get_extra_info`."""

    def start_stream(self, request: Request, status: int, fields: Mapping[str, str]) -> Chunks:
        """As `Request.start_stream`. Allowed for the request that is being handled, once."""

    def send_continue(self) -> None:
        """Ask the client for the body that it holds back (RFC 9110, section 10.1.1)."""

    def update_reading(self) -> None:
        """Pause or resume reading: what `request.unread` says has changed."""

    def remember(self, request: Request, note: object, generation: object, gaps: frozenset[str]) -> None:
        """As `Request.remember`."""


class Streamed:
    """Returned by a handler that began its response with `Request.start_stream`; the stream may outlast the handler."""


RequestLine = tuple[str, str]
"""The method and the target of a request."""


class Request(msgspec.Struct, eq=False):
    """One request. `target` is that of the request line, without scheme and host (RFC 9112, section 3.2)."""

    transport: RequestTransport
    method: str
    target: str
    fields: Headers
    length: int | None = 0
    """Bytes of the body; None if it is chunked."""
    arrived: int = 0
    """Bytes of the body that arrived."""
    is_complete: bool = False
    """True once the whole body arrived."""
    _body: bytes | bytearray = b""
    known: KnownHead[RequestLine] | None = None
    """Its head, if that is remembered."""
    too_large: bool = False
    """True if the body is larger than one may be; nothing of it is kept."""
    wants_close: bool = False
    """True if the client sends no other request on this connection."""
    is_http_1_0: bool = False
    response_fields: Mapping[str, str] = NONE
    """Header fields that are added to any response."""
    on_disconnect: Callable[[], None] | None = None
    """Called if the client disconnects before it is answered; the handler runs on."""
    candidate: bytes | None = None
    """The head, if it is short enough to be remembered and is not remembered yet."""

    _is_dropped: bool = False
    _is_cut: bool = False
    _waiter: asyncio.Future[None] | None = None

    @property
    def path(self) -> str:
        """The path, percent-decoded as UTF-8; what is no UTF-8 becomes U+FFFD."""
        return unquote(self.raw_path, errors="replace")

    @property
    def raw_path(self) -> str:
        """The path as it was sent, percent-encoded."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the query; the first value of each name."""
        return dict(reversed(parse_qsl(self.target.partition("?")[2], keep_blank_values=True)))

    @property
    def scheme(self) -> str:
        """That of its connection: "https" with TLS, else "http"."""
        return "http" if self.transport_info("ssl_object") is None else "https"

    @property
    def local(self) -> tuple[str, int] | None:
        """The address and port that the connection was made to; None if it has no IP address."""
        return ip_address(self.transport_info("sockname"))

    @property
    def peer(self) -> str | None:
        """The client's address; None if it is no IP address."""
        return self.transport.peer

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate, as `ssl.SSLSocket.getpeercert` returns it; None without one."""
        return self.transport.certificate

    @property
    def missing(self) -> int | None:
        """Bytes of the body that have not arrived; None if their number is unknown."""
        if self.is_complete:
            return 0
        return None if self.length is None else self.length - self.arrived

    @property
    def unread(self) -> int:
        """Bytes of the body that are kept and that no handler waits for."""
        return 0 if self._waiter is not None else len(self._body)

    @property
    def is_disconnected(self) -> bool:
        """True once the client has closed the connection, or its side of it."""
        return self.transport.is_disconnected

    def transport_info(self, name: str) -> Any:
        """`asyncio.BaseTransport.get_extra_info`: "peercert", "ssl_object", ..."""
        return self.transport.transport_info(name)

    def remember(self, note: object, generation: object, gaps: frozenset[str] = frozenset()) -> None:
        """Keep a note with this head, for later requests on this connection that have the same head.

        "The same" is byte for byte, but for the digits of `Content-Length` and the values of `gaps`: names, in lower
        case, of fields that `note` does not depend on. This also tells the server that the request was accepted: a
        connection remembers no head before. Both are dropped when the connection closes, and after `Bounds.idle`
        seconds at the latest.
        """
        if self.known is not None or self.candidate is not None:
            self.transport.remember(self, note, generation, gaps)

    def recall(self, kind: type[T], generation: object) -> T | None:
        """The note last kept with this head, if it is a `kind` and was kept in this very generation."""
        note = None if self.known is None else self.known.note(generation)
        return note if isinstance(note, kind) else None

    def start_stream(self, status: int, fields: Mapping[str, str]) -> Chunks:
        """Begin a response of unknown length; the handler returns `Streamed` afterwards."""
        return self.transport.start_stream(self, status, fields)

    @property
    def received(self) -> bytes | None:
        """The body, if all of it arrived and it is not too large."""
        if not self.is_complete or self.too_large:
            return None
        return bytes(self._body)

    async def body(self, timeout: float) -> bytes:
        """Wait for the whole body, `timeout` seconds at most.

        Raises BodyTooLarge, BodyTimeout, and BodyIncomplete if the client stops in the middle.
        """
        if not (self.is_complete or self.too_large or self._is_cut):
            await self._wait(timeout)
        if self.too_large:
            raise BodyTooLarge
        if self.is_complete:
            return bytes(self._body)
        raise BodyIncomplete if self._is_cut else BodyTimeout

    async def _wait(self, timeout: float) -> None:
        """Returns when all of the body arrived, or no more will, or after `timeout` seconds."""
        if not self.arrived and self.fields.get("expect", "").lower() == "100-continue":
            self.transport.send_continue()
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        self.transport.update_reading()
        timer = loop.call_later(timeout, wake, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            timer.cancel()

    def become(self, method: str, target: str, fields: Headers, body: bytes) -> None:
        """Take the place of another request, which came in the body of this one: it is answered in its stead."""
        assert self.is_complete, "the other one is whole"
        self.method, self.target, self.fields, self._body = method, target, fields, body
        self.length = self.arrived = len(body)
        self.known = self.candidate = None

    def feed(self, data: bytes) -> None:
        """Take a piece of the body."""
        self.arrived += len(data)
        if self.arrived > self.transport.max_body and not self.too_large:
            self.too_large, self._body = True, b""
            wake(self._waiter)
        if self.too_large or self._is_dropped:
            return
        # Joined as it arrives: pieces may be of a byte each, and many times that as objects.
        if not self._body:
            self._body = data
        elif isinstance(self._body, bytearray):
            self._body += data
        else:
            self._body = bytearray(self._body + data)

    def finish(self) -> None:
        """Take note that the body is complete."""
        self.is_complete = True
        wake(self._waiter)

    def cut(self) -> None:
        """Take note that the rest of the body will not arrive."""
        self._is_cut = True
        wake(self._waiter)

    def drop(self) -> None:
        """Throw the body away, and what still arrives of it."""
        self._is_dropped, self._body = True, b""
        self.transport.update_reading()


Answered = Response | Streamed
RequestHandler = Callable[[Request], Awaitable[Answered]]


def ip_address(found: object) -> tuple[str, int] | None:
    """The IP address and port in what a transport says of its socket or its peer; None if it has none."""
    match found:
        case (str(host), int(port), *_):
            return host, port
        case _:
            return None


def ip_host(found: object) -> str | None:
    """The IP address alone."""
    address = ip_address(found)
    return None if address is None else address[0]


def wake(waiter: asyncio.Future[None] | None) -> None:
    """Lets the task go on that waits for it, if one still does."""
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
