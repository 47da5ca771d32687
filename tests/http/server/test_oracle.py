"""The server beside h11: whatever is sent, in whatever pieces, is read as h11 reads it, and answered once, in order."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcproxy.http import server as http
from mcproxy.http.server.connection import COPIED, LAST_BYTES, MAX_UNREAD
from mcproxy.http.server.head_cache import LONGEST_KNOWN
from mcproxy.http.server.reader import MAX_HEAD, MAX_WAITING, ReaderState, RequestReader
from tests.fuzz.http import mutated
from tests.http.server.driven import DrivenConnection, settle
from tests.http.server.serving import BOUNDS

MAX_BODY = 700_000
EDGES = sorted(
    edge + step for edge in (0, LONGEST_KNOWN, COPIED, LAST_BYTES, MAX_UNREAD, MAX_BODY) for step in (-1, 0, 1)
)[1:]
"""Sizes of bodies around every buffer's."""
HEADS = (0, 40, *range(LONGEST_KNOWN - 200, LONGEST_KNOWN + 1, 40), MAX_HEAD - 1000)
"""Bytes by which a head is longer than it must be."""
PIECES = (1, 2, 13, 100, LONGEST_KNOWN, 64 * 1024, 256 * 1024)
"""Bytes that arrive together."""


@dataclass(frozen=True)
class Sent:
    """One request of a client."""

    number: int
    body: int = 0
    """Bytes."""
    chunk: int | None = None
    """Bytes of each chunk of the body; None for a body with a length."""
    filler: int = 0
    """Bytes that its head has more."""
    method: bytes = b"POST"
    extra: tuple[bytes, ...] = ()
    """More header lines."""
    version: bytes = b"1.1"

    @property
    def content(self) -> bytes:
        return random.Random(self.number).randbytes(100) * (self.body // 100) + b"x" * (self.body % 100)

    def encoded(self) -> bytes:
        lines = [b"%b /%d HTTP/%b" % (self.method, self.number, self.version), b"Host: here", *self.extra]
        if self.filler:
            lines.append(b"X-Filler: " + b"f" * self.filler)
        content = self.content
        if self.chunk is None:
            lines.append(b"Content-Length: %d" % self.body)
        else:
            lines.append(b"Transfer-Encoding: chunked")
            parts = [content[start : start + self.chunk] for start in range(0, len(content), self.chunk)]
            content = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        return b"\r\n".join([*lines, b"", content])

    @property
    def is_last(self) -> bool:
        return self.version == b"1.0" or b"Connection: close" in self.extra


Seen = tuple[str, str, int, int]
"""Of a request: its method, target, and the length and checksum of its body."""


def seen(method: str, target: str, body: bytes) -> Seen:
    return method, target, len(body), zlib.crc32(body)


def read_by_oracle(said: bytes) -> list[Seen]:
    """The requests that h11 reads, until something that is none.

    Empty lines before a request are left out, which h11 does not ignore (RFC 9112, section 2.2).
    """
    found: list[Seen] = []
    while said := said.lstrip(b"\r\n"):
        oracle = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        oracle.receive_data(said)
        try:
            event = oracle.next_event()
            if not isinstance(event, h11.Request):
                break
            body = bytearray()
            while isinstance(part := oracle.next_event(), h11.Data):
                body += part.data
        except h11.RemoteProtocolError:
            break
        if not isinstance(part, h11.EndOfMessage):
            break
        found.append(seen(event.method.decode(), event.target.decode("latin-1"), bytes(body)))
        oracle.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
        oracle.send(h11.EndOfMessage())
        if oracle.our_state is h11.MUST_CLOSE:
            break
        said, _ = oracle.trailing_data
    return found


def answers_in(written: bytes, methods: Sequence[str], *, has_ended: bool) -> list[tuple[int, bytes, bool]]:
    """The status and body of each response, and whether it is the last, as h11 reads them. All must be whole."""
    oracle = h11.Connection(h11.CLIENT)
    oracle.receive_data(written)
    if has_ended:
        oracle.receive_data(b"")
    found: list[tuple[int, bytes, bool]] = []
    for method in methods:
        if oracle.trailing_data[0] == b"":
            break
        oracle.send(h11.Request(method=method, target="/", headers=[("Host", "here")]))
        oracle.send(h11.EndOfMessage())
        event = oracle.next_event()
        while isinstance(event, h11.InformationalResponse):
            event = oracle.next_event()
        assert isinstance(event, h11.Response), event
        is_last = (b"connection", b"close") in event.headers
        body = b""
        while isinstance(part := oracle.next_event(), h11.Data):
            body += part.data
        assert isinstance(part, h11.EndOfMessage), part
        found.append((event.status_code, body, is_last))
        if is_last:
            break
        oracle.start_next_cycle()
    assert oracle.trailing_data[0] == b"", "an answer that nothing was asked for"
    return found


def in_pieces(said: bytes, sizes: Iterable[int]) -> list[bytes]:
    """`said`, cut into pieces of these sizes, again and again."""
    sizes, pieces, start = list(sizes), list[bytes](), 0
    while start < len(said):
        size = sizes[len(pieces) % len(sizes)]
        if len(pieces) > 500:
            size = 256 * 1024
        pieces.append(said[start : start + size])
        start += size
    return pieces


class Handler:
    """Answers with what it was sent. Each request of `slow` waits until it is let go on; it reads its body then."""

    def __init__(self, *, streams: bool = False, accepts: bool = True, waits: bool = False) -> None:
        self.gates: list[asyncio.Event] = []
        self.handled: list[Seen] = []
        self._streams = streams
        self._accepts = accepts
        self._waits = waits

    async def __call__(self, request: http.Request) -> http.Answered:
        if self._accepts and request.recall(str, self) is None:
            request.remember("accepted", self)
        if self._waits:
            gate = asyncio.Event()
            self.gates.append(gate)
            await gate.wait()
        try:
            body = request.received
            if body is None:
                body = await request.body(1000)
        except http.BodyTooLarge:
            return http.Response(413)
        except http.BodyIncomplete:
            return http.Response(400)
        this = seen(request.method, request.target, body)
        self.handled.append(this)
        answer = repr(this).encode()
        if not self._streams or request.method == "HEAD":
            return http.Response(200, answer)
        chunks = request.start_stream(200, {})
        chunks.write(answer[:5])
        asyncio.get_running_loop().call_soon(chunks.end, answer[5:])
        return http.Streamed()


async def converse(
    sent: Sequence[Sent], sizes: Sequence[int], handler: Handler, at_once: int, *, shuts_down: bool = False
) -> DrivenConnection:
    """Sends requests in pieces, `at_once` pieces before anything else goes on; handlers go on one by one."""
    async with asyncio.TaskGroup() as tasks:
        driven = DrivenConnection(tasks, handler, replace(BOUNDS, max_body=MAX_BODY))
        pieces = in_pieces(b"".join(request.encoded() for request in sent), sizes)
        for start in range(0, len(pieces), at_once):
            driven.send(*pieces[start : start + at_once])
            await asyncio.sleep(0)
        if shuts_down and not driven.transport.is_closing():
            assert not driven.transport.unread
            driven.shut_down()
        while True:
            await driven.settle()
            waiting = [gate for gate in handler.gates if not gate.is_set()]
            if not waiting:
                break
            waiting[0].set()
        is_done = driven.transport.has_ended is not None
        assert is_done or not driven.transport.unread, f"{driven.state}, and nothing goes on"
        driven.lose()
        await settle()
    return driven


REQUESTS = st.builds(
    Sent,
    number=st.integers(0, 99),
    body=st.sampled_from(EDGES) | st.integers(0, 2000),
    chunk=st.none() | st.sampled_from((500, 4096, 70_000, 300_000)),
    filler=st.sampled_from(HEADS),
    method=st.sampled_from((b"POST", b"GET", b"HEAD")),
    extra=st.sampled_from(
        (
            (),
            (b"X-One: 1",),
            (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"),
            (b"Connection: close",),
            (b"Expect: 100-continue",),
        )
    ),
    version=st.sampled_from((b"1.1", b"1.1", b"1.1", b"1.0")),
).filter(lambda request: not (request.version == b"1.0" and request.chunk is not None))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(REQUESTS, min_size=1, max_size=6),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=4),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@example([Sent(0, 300_000)] * 4, [64 * 1024], 1, False, True, False, False)
@example([Sent(0, 300_000)] * 4, [64 * 1024], 9, False, True, True, False)
@example([Sent(0, 300_000, 4096)] * 4, [256 * 1024], 2, True, False, True, True)
def test_requests_are_read_as_the_oracle_reads_them_and_answered_once_each_in_order(
    sent: list[Sent], sizes: list[int], at_once: int, streams: bool, accepts: bool, waits: bool, shuts_down: bool
) -> None:
    handler = Handler(streams=streams, accepts=accepts, waits=waits)
    shuts_down = shuts_down and not streams and sum(request.body for request in sent) <= MAX_UNREAD
    driven = asyncio.run(converse(sent, sizes, handler, at_once, shuts_down=shuts_down))
    said = b"".join(request.encoded() for request in sent)
    read = read_by_oracle(said)
    assert len(read) == 1 + next((place for place, each in enumerate(sent) if each.is_last), len(sent) - 1)
    has_ended = driven.transport.has_ended is not None
    answers = answers_in(driven.transport.written, [method for method, *_ in read], has_ended=has_ended)
    for (status, body, _), request in zip(answers, read, strict=False):
        if request[2] > MAX_BODY:
            assert status == 413
        else:
            assert (status, body) == (200, b"" if request[0] == "HEAD" else repr(request).encode())
    unanswered = read[len(answers) :]
    # A body over the limit ends the connection, unless little of it is missing.
    assert not unanswered or read[len(answers) - 1][2] > MAX_BODY
    assert handler.handled == [request for request in read[: len(answers)] if request[2] <= MAX_BODY]


class Elsewhere:
    """A transport that a reader needs nothing of."""

    max_body = MAX_BODY


def read_alone(pieces: Iterable[bytes], *, remembering: bool) -> tuple[list[Seen], RequestReader]:
    """The requests that a reader finds whole; it remembers each head, or none."""
    reader = RequestReader(Elsewhere())  # type: ignore[arg-type]  # it has all that is used of one
    found: list[http.Request] = []
    for piece in pieces:
        reader.receive(piece)
        for request in reader.requests:
            if remembering and request.candidate is not None:
                reader.remember(request.candidate)
            found.append(request)
        reader.requests.clear()
    whole = [(request.method, request.target, request.received) for request in found]
    return [seen(method, target, body) for method, target, body in whole if body is not None], reader


@settings(deadline=None)
@given(
    st.lists(REQUESTS.filter(lambda request: request.body <= 2000), min_size=1, max_size=MAX_WAITING),
    st.lists(st.integers(1, 5000), min_size=1, max_size=6),
    st.booleans(),
)
def test_a_reader_alone_finds_what_the_oracle_finds(sent: list[Sent], sizes: list[int], remembering: bool) -> None:
    said = b"".join(request.encoded() for request in sent)
    found, reader = read_alone(in_pieces(said, sizes), remembering=remembering)
    assert found == read_by_oracle(said)
    assert reader.refusal is None
    is_last = any(request.is_last for request in sent)
    assert reader.state is (ReaderState.STOPPED if is_last else ReaderState.BETWEEN)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_taken_for_a_request_that_the_oracle_takes_for_none(seed: int) -> None:
    chance = random.Random(seed)
    samples = [
        Sent(1, 10).encoded() + Sent(2).encoded(),
        Sent(3, 10, 4).encoded() + Sent(4).encoded(),
        Sent(5, extra=(b"Connection: keep-alive",), version=b"1.0").encoded(),
    ]
    for _ in range(20):
        said = mutated(chance, samples)
        if b"  " in said:
            continue  # RFC 9112, section 3, admits several spaces in a request line; h11 does not
        found, _ = read_alone(in_pieces(said, [chance.choice(PIECES)]), remembering=chance.random() < 0.5)
        assert found == read_by_oracle(said)[: len(found)], said
