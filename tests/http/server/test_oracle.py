"""The server beside h11: whatever is sent, in whatever pieces, is read as h11 reads it, and answered once, in order."""

from __future__ import annotations

import asyncio
import itertools
import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import h11
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcproxy.http import server as http
from mcproxy.http.head_cache import LONGEST_KNOWN
from mcproxy.http.server.connection import COPIED, LAST_BYTES, MAX_UNREAD
from mcproxy.http.server.reader import MAX_HEAD, MAX_WAITING, ReaderState, RequestReader
from tests.depth import examples
from tests.fuzz.http import mutated
from tests.http.server.driven import DrivenConnection, settle
from tests.http.server.serving import BOUNDS

MAX_BODY = 700_000
EDGES = sorted(
    edge + step for edge in (0, LONGEST_KNOWN, COPIED, LAST_BYTES, MAX_UNREAD, MAX_BODY) for step in (-1, 0, 1)
)[1:]
EDGES += [MAX_UNREAD + 1000, MAX_UNREAD + LAST_BYTES // 2]
"""Sizes of bodies around every buffer's."""
HEADS = (0, 40, *range(LONGEST_KNOWN - 200, LONGEST_KNOWN + 1, 40), MAX_HEAD - 1000)
"""Bytes by which a head is longer than it must be."""
GARBAGE = b"\x00\r\n\r\n"
MAX_PIECE = 256 * 1024
VARYING = frozenset({"x-filler", "x-one"})
PIECES = (1, 2, 13, 100, 300, LONGEST_KNOWN, 64 * 1024, MAX_PIECE)
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
            size = MAX_PIECE
        pieces.append(said[start : start + size])
        start += size
    return pieces


@dataclass(frozen=True)
class Manner:
    """How a client and the handlers behave."""

    sizes: tuple[int, ...] = (64 * 1024,)
    """Bytes of each piece, again and again."""
    together: tuple[int, ...] = (100,)
    """Requests that are cut as one; the first piece of the next begins with a request, as most do."""
    alike: bool = False
    """All heads are the same, but for their lengths."""
    at_once: int = 1
    """Pieces that arrive before anything else goes on."""
    streams: bool = False
    accepts: bool = True
    """Handlers accept requests, so that their heads are remembered."""
    waits: bool = False
    """Handlers wait before they read."""
    ignores: bool = False
    """Handlers read no body."""
    shuts_down: bool = False
    """The client shuts down its side behind its requests."""
    stalls: bool = False
    """The client stops taking what is written, and goes on, again and again."""
    ends_badly: bool = False
    """Something follows that is no request."""


class Handler:
    """Answers with what it was sent. If it waits, each request waits for its gate before its body is read."""

    def __init__(self, manner: Manner) -> None:
        self.gates: list[asyncio.Event] = []
        self.handled: list[Seen] = []
        self._manner = manner

    def answer_to(self, request: Seen) -> bytes:
        return request[1].encode() if self._manner.ignores else repr(request).encode()

    async def __call__(self, request: http.Request) -> http.Answered:
        if self._manner.accepts and request.recall(str, self) is None:
            request.remember("accepted", self, VARYING)
        if self._manner.waits:
            gate = asyncio.Event()
            self.gates.append(gate)
            await gate.wait()
        if self._manner.ignores:
            return self._answer(request, request.target.encode())
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
        return self._answer(request, self.answer_to(this))

    def _answer(self, request: http.Request, answer: bytes) -> http.Answered:
        if not self._manner.streams or request.method == "HEAD":
            return http.Response(200, answer)
        chunks = request.start_stream(200, {})
        chunks.write(answer[:2])
        asyncio.get_running_loop().call_soon(chunks.end, answer[2:])
        return http.Streamed()


def cut(sent: Sequence[Sent], manner: Manner) -> list[bytes]:
    """What a client sends, in pieces."""
    pieces: list[bytes] = []
    rest, together = list(sent), itertools.cycle(manner.together)
    while rest:
        number = next(together)
        pieces += in_pieces(b"".join(request.encoded() for request in rest[:number]), manner.sizes)
        del rest[:number]
    return [*pieces, GARBAGE] if manner.ends_badly else pieces


async def converse(sent: Sequence[Sent], manner: Manner, handler: Handler) -> DrivenConnection:
    """Sends requests; handlers that wait go on one by one when nothing else does."""
    # A client whose last bytes are not read yet has not shut down its side, and streams end when it does.
    shuts_down = manner.shuts_down and not manner.streams and sum(each.body for each in sent) <= MAX_UNREAD // 2
    async with asyncio.TaskGroup() as tasks:
        driven = DrivenConnection(tasks, handler, msgspec.structs.replace(BOUNDS, max_body=MAX_BODY))
        pieces = cut(sent, manner)
        for start in range(0, len(pieces), manner.at_once):
            driven.send(*pieces[start : start + manner.at_once])
            assert driven.connection._unread() <= MAX_UNREAD + MAX_PIECE
            await asyncio.sleep(0)
            if manner.stalls and not driven.transport.is_closing():
                driven.take(goes_on=driven.connection.full)
        if shuts_down and not driven.transport.is_closing():
            assert not driven.transport.unread
            driven.shut_down()
        while True:
            if driven.connection.full:
                driven.take(goes_on=True)
            await driven.settle()
            waiting = [gate for gate in handler.gates if not gate.is_set()]
            if not waiting:
                break
            waiting[0].set()
        is_done = driven.transport.has_ended is not None
        assert is_done or not driven.transport.unread, f"{driven.state}, and nothing goes on"
        assert is_done or driven.state in ("IDLE", "LEFT"), f"{driven.state}, and all is answered"
        driven.lose()
        await settle()
    return driven


REQUESTS = st.builds(
    Sent,
    number=st.integers(0, 1),  # so that heads are repeated
    body=st.sampled_from(EDGES) | st.integers(0, 2000),
    chunk=st.sampled_from((None, None, None, 500, 4096, 70_000, 300_000)),
    filler=st.sampled_from((0, 0, 0, *HEADS)),
    method=st.sampled_from((b"POST", b"POST", b"GET", b"HEAD")),
    extra=st.sampled_from(
        (
            (),
            (),
            (),
            (b"X-One: 1",),
            (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"),
            (b"Connection: close",),
            (b"Expect: 100-continue",),
        )
    ),
    version=st.sampled_from((b"1.1", b"1.1", b"1.1", b"1.0")),
).filter(lambda request: not (request.version == b"1.0" and request.chunk is not None))


MANNERS = st.builds(
    Manner,
    sizes=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map(tuple),
    together=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    alike=st.booleans(),
    at_once=st.integers(1, 9),
    streams=st.booleans(),
    accepts=st.booleans(),
    waits=st.booleans(),
    ignores=st.booleans(),
    shuts_down=st.booleans(),
    stalls=st.booleans(),
    ends_badly=st.booleans(),
)


@settings(max_examples=examples(400))
@given(st.lists(REQUESTS, min_size=1, max_size=6), MANNERS)
@example([Sent(0, 300_000)] * 4, Manner())
@example([Sent(0, 300_000)] * 4, Manner(at_once=9, waits=True, stalls=True))
@example([Sent(0, 300_000, 4096)] * 4, Manner((256 * 1024,), at_once=2, streams=True, waits=True, stalls=True))
@example([Sent(0, 300_000)] * 4, Manner(waits=True, ignores=True))
@example([Sent(0, 300)] * 4, Manner(streams=True, ends_badly=True))
@example([Sent(0, MAX_UNREAD + 1000)] * 2, Manner((4096,), waits=True, ignores=True))
@example([Sent(0, 300), Sent(0, 500), Sent(0, 700), Sent(0, 30)], Manner((400,), together=(1, 3)))
@example([Sent(0, 300)] * 5, Manner((1000,), together=(1, 3)))
@example([Sent(0, 3)], Manner(streams=True, ends_badly=True))
@example([Sent(0, 294_912), Sent(0, 262_144)], Manner((MAX_PIECE,), together=(1,), at_once=4, waits=True))
@example([Sent(0, 3), Sent(0, 200_000), Sent(0, 200_000)], Manner((MAX_PIECE,), at_once=2, waits=True))
def test_requests_are_read_as_the_oracle_reads_them_and_answered_once_each_in_order(
    sent: list[Sent], manner: Manner
) -> None:
    if manner.alike:
        sent = [replace(sent[0], body=request.body) for request in sent]
    handler = Handler(manner)
    driven = asyncio.run(converse(sent, manner, handler))
    read = read_by_oracle(b"".join(request.encoded() for request in sent))
    assert len(read) == 1 + next((place for place, each in enumerate(sent) if each.is_last), len(sent) - 1)
    has_ended = driven.transport.has_ended is not None
    methods = [method for method, *_ in read]
    answers = answers_in(driven.transport.written, [*methods, "GET"], has_ended=has_ended)
    if len(answers) > len(read):
        refusal = answers.pop()
        assert manner.ends_badly
        assert (refusal[0], refusal[2]) == (400, True)
    for (status, body, _), request in zip(answers, read, strict=False):
        if request[2] > MAX_BODY and not manner.ignores:
            assert status == 413
        else:
            assert (status, body) == (200, b"" if request[0] == "HEAD" else handler.answer_to(request))
    if len(answers) < len(read):
        # What is missing of a body that is too large, or that no handler reads, ends the connection if it is much.
        last = sent[len(answers) - 1]
        assert last.body > (LAST_BYTES if manner.ignores else MAX_BODY) or (manner.ignores and last.chunk is not None)
    if not manner.ignores:
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
            if remembering:
                reader.remember(request, None, None, VARYING)
            found.append(request)
        reader.requests.clear()
    whole = [(request.method, request.target, request.received) for request in found]
    return [seen(method, target, body) for method, target, body in whole if body is not None], reader


@settings(max_examples=examples(400))
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


@pytest.mark.parametrize("seed", range(examples(160)))
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
