"""One request and what answers it. Neither knows a socket: `RequestTransport` is what carries them.

The body of a request is read once, and no further than its reader waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from mcproxy.http.server.head_cache import RememberedHead
from mcproxy.http.server.headers import NONE, Headers, HeadMemory

T = TypeVar("T")

MOST_UNREAD: Final = 256 * 1024
"""Bytes of a body that wait for somebody to read it; its client is made to wait beyond."""


class BodyTooLarge(Exception):
    """A body over the server's limit."""


class BodyLate(Exception):
    """A body that took longer than whoever reads it waits."""


class BodyCut(Exception):
    """The connection ended, or ceased to be HTTP, before the body was whole."""


class Response(msgspec.Struct, frozen=True):
    """`fields` are header fields, but for those that say how long the body is."""

    status: int
    body: bytes = b""
    fields: Mapping[str, str] = NONE


class Chunks(Protocol):
    """The body of a response of unknown length. Written at once, and never waited for."""

    ready: Callable[[], None]
    """Called when `full` no longer holds."""
    gone: Callable[[], None]
    """Called once, when the client has left before the end."""

    @property
    def full(self) -> bool:
        """Whether the client should first take what was written."""

    def write(self, data: bytes) -> None:
        """What is empty has the head of the response go alone; else it goes with what is written first."""

    def end(self, data: bytes = b"") -> None:
        """`data` is the last."""

    def reset(self) -> None:
        """Hangs up, so that nobody takes what was written for the whole."""


class RequestTransport(Protocol):
    """What a request came by, and its response goes by."""

    most: int
    """Bytes that a body may have."""

    @property
    def gone(self) -> bool:
        """Whether the client has left."""

    def fact(self, name: str) -> Any:
        """What the transport knows of itself by that name (`asyncio.BaseTransport.get_extra_info`)."""

    def begin(self, request: Request, status: int, fields: Mapping[str, str]) -> Chunks: ...

    def invite(self) -> None:
        """Has the client send the body that it holds back (RFC 9110, section 10.1.1)."""

    def hold_back(self, full: bool) -> None:
        """Stops or resumes taking what the client sends."""

    def remember(self, request: Request) -> None:
        """Keeps `request.candidate`, so that later requests with the same head share `request.fields`."""


class Streamed:
    """Stands for a response that its handler has begun to write. It goes on for as long as its chunks do."""


class Request(msgspec.Struct, eq=False):
    """`target` is what was asked for, as it stood in the request's first line, without scheme and host.

    `length` are the bytes of its body, where that is known; `come` is what has come of it and is wanted, of `size`.
    """

    line: RequestTransport
    method: str
    target: str
    fields: Headers
    length: int | None = 0
    come: bytes | bytearray = b""
    size: int = 0
    whole: bool = False
    """Whether all of it has come."""
    too_large: bool = False
    """Whether its body is larger than one may be; nothing of it is kept."""
    is_last: bool = False
    """Whether its client wants the connection to end with it."""
    is_old: bool = False
    """Whether it is of HTTP/1.0."""
    added: Mapping[str, str] = NONE
    """Header fields of whatever it is answered with."""
    when_gone: Callable[[], None] | None = None
    """Called where its client leaves before it is answered; its handler runs on."""
    candidate: RememberedHead | None = None
    """The head, where it is short enough to be remembered and is not remembered yet."""

    _unwanted: bool = False
    _cut: bool = False
    _waiter: asyncio.Future[None] | None = None

    @property
    def path(self) -> str:
        return unquote(self.raw_path, errors="replace")

    @property
    def raw_path(self) -> str:
        """As it was sent, percent-encoded."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> Mapping[str, str]:
        """Of a name that came twice, the first value counts."""
        return dict(reversed(parse_qsl(self.target.partition("?")[2], keep_blank_values=True)))

    @property
    def scheme(self) -> str:
        return "http" if self.fact("ssl_object") is None else "https"

    @property
    def local(self) -> tuple[str, int] | None:
        """The address and port that it came to; None where that is no IP address."""
        return _address(self.fact("sockname"))

    @property
    def peer(self) -> str | None:
        """The address that it came from."""
        address = _address(self.fact("peername"))
        return None if address is None else address[0]

    @property
    def unread(self) -> int | None:
        """How many bytes of it are still to come; None where that is not known."""
        if self.whole:
            return 0
        return None if self.length is None else self.length - self.size

    @property
    def gone(self) -> bool:
        """Whether its client has left."""
        return self.line.gone

    def fact(self, name: str) -> Any:
        return self.line.fact(name)

    def remember(self, value: object, valid_for: object) -> None:
        """Keep one value with this head, for later requests on this connection that have the same head.

        It also tells the server that the request was accepted: a connection remembers no head before. "The same head"
        is the same method, target and header lines, byte for byte, but for the digits of `Content-Length`. The server
        drops the value with the head: when the connection closes, and after `Bounds.idle` seconds at the latest.
        """
        self.fields.memory = HeadMemory(value, valid_for)
        if self.candidate is not None:
            self.line.remember(self)

    def recall(self, kind: type[T], valid_for: object) -> T | None:
        """The value last kept with this head, if it is a `kind` and was kept for this very object `valid_for`."""
        memory = self.fields.memory
        if memory is not None and memory.valid_for is valid_for and isinstance(memory.value, kind):
            return memory.value
        return None

    def begin(self, status: int, fields: Mapping[str, str]) -> Chunks:
        """Begins a response whose length is not known; nothing else answers this request."""
        return self.line.begin(self, status, fields)

    @property
    def received(self) -> bytes | None:
        """The whole body, if it has come and is not too large."""
        if not self.whole or self.too_large:
            return None
        return bytes(self.come)

    async def body(self, patience: float) -> bytes:
        """Raises BodyTooLarge, BodyCut, and BodyLate where it is not whole after `patience` seconds."""
        if not (self.whole or self.too_large or self._cut):
            await self._stirred(patience)
        if self.too_large:
            raise BodyTooLarge
        if self.whole:
            return bytes(self.come)
        raise BodyCut if self._cut else BodyLate

    async def _stirred(self, patience: float) -> None:
        """Returns when all of the body has come, or no more will, or after so many seconds."""
        if not self.size and self.fields.get("expect", "").lower() == "100-continue":
            self.line.invite()
        self.line.hold_back(False)
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        late = loop.call_later(patience, self._stir)
        try:
            await self._waiter
        finally:
            self._waiter = None
            late.cancel()

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self.line.most and not self.too_large:
            self.too_large, self.come = True, b""
            self._stir()
        if self.too_large or self._unwanted:
            return
        # Put together as it comes: pieces may be of a byte each, and many times that as objects.
        if not self.come:
            self.come = data
        elif isinstance(self.come, bytearray):
            self.come += data
        else:
            self.come = bytearray(self.come + data)
        if self.size > MOST_UNREAD and self._waiter is None:
            self.line.hold_back(True)

    def finish(self) -> None:
        self.whole = True
        self._stir()

    def cut(self) -> None:
        """The rest will not come."""
        self._cut = True
        self._stir()

    def drop(self) -> None:
        """Nobody reads on: what still comes of the body is thrown away."""
        self._unwanted, self.come = True, b""
        self.line.hold_back(False)

    def _stir(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


Answered = Response | Streamed
RequestHandler = Callable[[Request], Awaitable[Answered]]


def _address(found: object) -> tuple[str, int] | None:
    match found:
        case (str(host), int(port), *_):
            return host, port
        case _:
            return None
