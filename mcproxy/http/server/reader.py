"""Bytes in, requests out: reads one connection's requests and limits their heads (RFC 9112). Knows no socket or clock.

    BETWEEN --HEAD_BEGUN--> HEAD --HEAD_READ--> BODY --BODY_READ--> BETWEEN
    BETWEEN --HEAD_KNOWN--> BODY                BODY --LAST_BODY_READ--> STOPPED
    HEAD --UPGRADE_IGNORED--> BETWEEN           any --REFUSED, ENDED--> STOPPED

A head that is remembered is compared byte for byte; any other is read by llhttp, which is strict. What is no HTTP/1.1
(or 1.0), or could be read in two ways, is refused, and nothing behind it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple

import httptools
import msgspec

from mcproxy.http.head_cache import MAX_DIGITS, HeadCache, KnownHead, plain_head
from mcproxy.http.headers import Headers
from mcproxy.http.server.heads import read_fields, read_target
from mcproxy.http.server.messages import Request, RequestLine, RequestTransport

MAX_HEAD: Final = 64 * 1024
"""Bytes in a row that may be no body: a head, trailers, or what separates chunks."""
MAX_WAITING: Final = 16
"""Requests that may wait behind the one that is being answered."""

_TOO_LARGE: Final = f"the header block is larger than {MAX_HEAD} bytes"


class ReaderState(Enum):
    """What the next byte belongs to."""

    BETWEEN = "between requests"
    HEAD = "reading a header block"
    BODY = "reading a body"
    STOPPED = "nothing more is read"

    __hash__ = object.__hash__  # Enum's own is written in Python, and heads are read often


class ReaderEvent(Enum):
    """What was read."""

    HEAD_BEGUN = "the first byte of a head was read"
    HEAD_READ = "a head was read"
    HEAD_KNOWN = "a remembered head was read, and its body not yet"
    BODY_READ = "a body was read"
    LAST_BODY_READ = "the body of the last request was read"
    UPGRADE_IGNORED = "a head is read again without its offer of another protocol"
    REFUSED = "something was read that is no request, or one too many"
    ENDED = "the connection reads no more"

    __hash__ = object.__hash__


# By these names, since an attribute of an enum costs a call of its metaclass.
BETWEEN, HEAD, BODY, STOPPED = ReaderState
HEAD_BEGUN, HEAD_READ, HEAD_KNOWN, BODY_READ, LAST_BODY_READ, UPGRADE_IGNORED, REFUSED, ENDED = ReaderEvent

TRANSITIONS: Final[Mapping[ReaderState, Mapping[ReaderEvent, ReaderState]]] = {
    BETWEEN: {
        HEAD_BEGUN: HEAD,
        HEAD_KNOWN: BODY,
        REFUSED: STOPPED,
        ENDED: STOPPED,
    },
    HEAD: {
        HEAD_READ: BODY,
        UPGRADE_IGNORED: BETWEEN,
        REFUSED: STOPPED,
        ENDED: STOPPED,
    },
    BODY: {
        BODY_READ: BETWEEN,
        LAST_BODY_READ: STOPPED,
        REFUSED: STOPPED,
        ENDED: STOPPED,
    },
    STOPPED: {},
}


class ReadingRefused(NamedTuple):
    """Why nothing more is read: the status to answer with, and a sentence."""

    status: int
    sentence: str
    in_body: bool
    """True if it came in the body of a request, which has an answer of its own."""


class _Stop(Exception):
    """Ends a run of the parser."""


class _PartialHead(msgspec.Struct):
    """What the parser has read of a head."""

    start: bytes | None
    """The bytes that it begins with, if it is the first in them."""
    target: bytes = b""
    lines: list[tuple[bytes, bytes]] = []
    """All but `Content-Length`."""
    length: int | None = None


class RequestReader:
    """Appends each request to `requests` when its head was read, and feeds its body to it.

    `refusal` says why it stopped, if what it read is to blame.
    """

    __slots__ = (  # there are many connections, and each request asks for most of these
        "_head",
        "_heads",
        "_missing",
        "_parser",
        "_start",
        "_transport",
        "_upgrade",
        "_without_body",
        "heads_read",
        "receiving",
        "refusal",
        "requests",
        "state",
    )

    def __init__(self, transport: RequestTransport) -> None:
        self.state = BETWEEN
        self.requests: list[Request] = []
        """Those that wait to be handled, in order; the handler of one takes it out."""
        self.receiving: Request | None = None
        """The request whose body is being read."""
        self.refusal: ReadingRefused | None = None
        self.heads_read = 0
        """How many heads the parser read."""
        self._transport = transport
        self._parser: httptools.HttpRequestParser | None = None
        self._head: _PartialHead | None = None
        self._start: bytes | None = None
        """What the parser is fed, until a head in it was read, if a request begins with it."""
        self._without_body = 0
        """Bytes that the parser was fed in a row without reading any of a body."""
        self._upgrade: bytes | None = None
        """A head that offers another protocol, without that offer."""
        self._missing = 0
        """Bytes of a body that the parser does not read."""
        self._heads = HeadCache[RequestLine]()

    def receive(self, data: bytes) -> None:
        """Read the next bytes of the connection."""
        if self.state is BETWEEN:
            for known in self._heads.heads:
                if self._recognise(known, data):
                    return
        elif self.state is BODY and self._missing:
            data = self._read_body(data)
            if data:
                self.receive(data)
            return
        if self.state is not STOPPED:
            self._parse(data)

    def stop(self) -> None:
        """Read no more."""
        if self.state is not STOPPED:
            self._stop(ENDED)

    def remember(self, request: Request, note: object, generation: object, gaps: frozenset[str]) -> None:
        """As `Request.remember`."""
        known, head, request.candidate = request.known, request.candidate, None
        if known is None and head is not None:
            known = self._heads.add((request.method, request.target), request.fields, head, gaps)
        elif known is not None and known.gaps != gaps:
            self._heads.remove(known)  # the next is read by llhttp, and remembered with these
            return
        if known is not None:
            known.keep(note, generation)

    def forget(self) -> None:
        """Free all memory that the next request does not need."""
        self._heads.clear()
        if self.state is STOPPED or self.state is BETWEEN:
            self._parser = None

    # Heads that are remembered

    def _recognise(self, known: KnownHead[RequestLine], data: bytes) -> bool:
        """Reads a request whose head is `known`, if `data` is that and no more than its body."""
        found = known.read(data)
        if found is None:
            return False
        length, body = found
        size = len(body)
        if size > length or length > self._transport.max_body or len(self.requests) >= MAX_WAITING:
            return False
        method, target = known.parsed
        whole = size == length
        request = Request(self._transport, method, target, known.fields, length, size, whole, body, known)
        self.requests.append(request)
        if size < length:
            self.state = TRANSITIONS[self.state][HEAD_KNOWN]
            self.receiving, self._missing = request, length - size
        return True

    def _read_body(self, data: bytes) -> bytes:
        """The body of a request whose head was recognised. Returns what is behind it."""
        request = self.receiving
        assert request is not None
        body = data[: self._missing]
        self._missing -= len(body)
        request.feed(body)
        if not self._missing:
            self._finish(request)
        return data[len(body) :]

    def _finish(self, request: Request) -> None:
        self.receiving = None
        event = LAST_BODY_READ if request.wants_close else BODY_READ
        self.state = TRANSITIONS[self.state][event]
        request.finish()

    # Heads that are not

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        self._without_body += len(data)
        self._start = data if self.state is BETWEEN else None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_again(data[upgrade.args[0] :])
            return
        except httptools.HttpParserCallbackError:
            if self.state is not STOPPED:
                raise  # a fault of our own
        except httptools.HttpParserError as error:
            if self.state is not STOPPED:
                self._refuse(400, f"this is not HTTP: {error}")
        self._start = None
        if self._without_body > MAX_HEAD and self.state is not STOPPED:
            self._refuse(431, _TOO_LARGE)

    def _read_again(self, rest: bytes) -> None:
        """Ignores the offer of another protocol (RFC 9110, section 7.8)."""
        again, self._upgrade = self._upgrade, None
        assert again is not None
        self._parser = None
        self.state = TRANSITIONS[self.state][UPGRADE_IGNORED]
        self._parse(again + rest)

    def on_message_begin(self) -> None:
        self.state = TRANSITIONS[self.state][HEAD_BEGUN]
        self._head, self._start = _PartialHead(self._start), None

    def on_url(self, url: bytes) -> None:
        assert self._head is not None
        self._head.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:
            return  # trailers are no headers: RFC 9110, section 6.5.1
        if len(name) == 14 and name.lower() == b"content-length":
            digits = value.strip()  # llhttp has seen to it that there is one value, of digits
            if len(digits) > MAX_DIGITS:
                self._fail(400, f"Content-Length has more than {MAX_DIGITS} digits")
            self._head.length = int(digits)
        else:
            self._head.lines.append((name, value))

    def on_headers_complete(self) -> None:
        parser, head, fed = self._parser, self._head, self._without_body
        assert parser is not None
        assert head is not None
        self._head, self._without_body = None, 0
        method, version = parser.get_method().decode(), parser.get_http_version()
        fields = read_fields(head.lines)
        self._check(method, version, fields)
        if fed > MAX_HEAD and len(head.target) + sum(map(len, chain(*head.lines))) > MAX_HEAD:
            self._fail(431, _TOO_LARGE)
        if len(self.requests) >= MAX_WAITING:
            self._fail(429, f"more than {MAX_WAITING} requests wait on this connection")
        if parser.should_upgrade():
            self._upgrade = _without_upgrade(method, version, head)
            return
        declared = head.length or 0
        length = None if "transfer-encoding" in fields else declared
        request = Request(self._transport, method, self._target(head), fields, length)
        request.too_large = declared > self._transport.max_body
        request.is_http_1_0 = version == "1.0"
        # RFC 9112, appendix C.2.2: `Connection: keep-alive` of HTTP/1.0 may come from a proxy that did not read it.
        request.wants_close = request.is_http_1_0 or not parser.should_keep_alive()
        if head.start is not None and length is not None and not request.wants_close:
            # It is remembered once the application has accepted the request.
            request.candidate = plain_head(head.start, len(head.lines) + (head.length is not None))
        self.state = TRANSITIONS[self.state][HEAD_READ]
        self.heads_read += 1
        self.receiving = request
        self.requests.append(request)

    def _check(self, method: str, version: str, fields: Headers) -> None:
        """Refuses requests that could be read in two ways, and those that are not served."""
        if version not in {"1.1", "1.0"}:
            self._fail(505, f"HTTP/{version} is not served")
        hosts = len(fields.all("host"))
        if hosts != 1 and not (hosts == 0 and version == "1.0"):
            self._fail(400, "there must be one header Host")  # RFC 9112, section 3.2
        if "transfer-encoding" in fields:  # RFC 9112, section 6.1
            if version == "1.0":
                self._fail(400, "HTTP/1.0 has no Transfer-Encoding")
            if [coding.strip().lower() for coding in fields.all("transfer-encoding")] != ["chunked"]:
                self._fail(400, "the only transfer coding is chunked")
        if method == "CONNECT":
            self._fail(405, "this server is no proxy")

    def _target(self, head: _PartialHead) -> str:
        try:
            return read_target(head.target)
        except httptools.HttpParserInvalidURLError:
            self._fail(400, "the target of the request is no URL")
            raise AssertionError from None

    def on_body(self, body: bytes) -> None:
        self._without_body = 0
        if self.receiving is not None:
            self.receiving.feed(body)

    def on_message_complete(self) -> None:
        self._without_body = 0
        if self.receiving is not None:
            self._finish(self.receiving)

    def _fail(self, status: int, sentence: str) -> None:
        self._refuse(status, sentence)
        raise _Stop

    def _refuse(self, status: int, sentence: str) -> None:
        self.refusal = ReadingRefused(status, sentence, self.receiving is not None)
        self._stop(REFUSED)

    def _stop(self, event: ReaderEvent) -> None:
        self.state = TRANSITIONS[self.state][event]
        self._head = None
        if self.receiving is not None:
            self.receiving.cut()
            self.receiving = None


def _without_upgrade(method: str, version: str, head: _PartialHead) -> bytes:
    lines = [b"%b %b HTTP/%b" % (method.encode(), head.target, version.encode())]
    for name, value in head.lines:
        if name.lower() == b"connection":
            options = [option.strip() for option in value.split(b",")]
            lines.append(b"Connection: " + b",".join(option for option in options if option.lower() != b"upgrade"))
        elif name.lower() != b"upgrade":
            lines.append(b"%b: %b" % (name, value))
    if head.length:
        lines.append(b"Content-Length: %d" % head.length)
    return b"\r\n".join([*lines, b"", b""])
