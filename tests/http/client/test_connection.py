"""The twins of `mcproxy.http.client.connection`, `answer` and `heads`: bytes in, answers out, no socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from mcproxy.http.client.connection import MAX_HEAD, ClientConnection
from mcproxy.http.client.heads import write_head, write_request
from mcproxy.http.client.response import (
    LAST_BYTES,
    LONG_PIECE,
    MAX_UNREAD,
    ClientResponse,
    ConnectionBroken,
    ResponseTooLarge,
)
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

REQUEST = b"POST /mcp HTTP/1.1\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"
BEGUN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe"


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ended: str | None = None
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.ended = self.ended or "aborted"

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def is_closing(self) -> bool:
        return self.ended is not None

    def pause_reading(self) -> None:
        assert self.reading, "it is paused already"
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading, "it is not paused"
        self.reading = True


class Bench:
    """A connection, what it is heard to say, and one exchange on it."""

    def __init__(self) -> None:
        self.transport = FakeTransport()
        self.freed = 0
        self.lost = 0
        self.ignored = 0
        """How often it was lost without a word on what was asked."""
        self.connection = ClientConnection(self._free, self._lose)
        self.connection.connection_made(self.transport)

    def _free(self, connection: ClientConnection) -> None:
        self.freed += 1

    def _lose(self, connection: ClientConnection, silently: bool) -> None:
        self.lost += 1
        self.ignored += silently

    async def answer(self, *pieces: bytes) -> ClientResponse:
        """The answer to a request, `pieces` being what the server says before anybody looks."""
        with anyio.fail_after(GUARD):
            async with feeding(lambda: self.feed(pieces)):
                return await self.connection.exchange(REQUEST)

    def feed(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.connection.data_received(piece)


@asynccontextmanager
async def feeding(feed: Callable[[], None]) -> AsyncIterator[None]:
    """Calls `feed` once the task that entered waits for something."""
    handle = asyncio.get_running_loop().call_soon(feed)
    try:
        yield
    finally:
        handle.cancel()


async def broken(bench: Bench, *pieces: bytes) -> ConnectionBroken:
    """How an exchange fails before its answer has begun."""
    with pytest.raises(ConnectionBroken) as failed:
        await bench.answer(*pieces)
    return failed.value


def in_pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places) if start < end]


def chunked(parts: Iterable[bytes]) -> bytes:
    return b"".join(b"%x;x=y\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\nTrailer: t\r\n\r\n"


BODIES = st.lists(st.binary(max_size=300), max_size=6)
CUTS = st.lists(st.integers(0, 4000), max_size=30)


@given(BODIES, CUTS, st.booleans(), st.booleans())
def test_an_answer_is_the_same_however_it_is_split(
    parts: list[bytes], cuts: list[int], in_chunks: bool, interim: bool
) -> None:
    body = b"".join(parts)
    framing = b"Transfer-Encoding: chunked" if in_chunks else b"Content-Length: %d" % len(body)
    head = b"HTTP/1.1 200 Fine\r\nX-One: 1\r\nx-one: 2\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\n%b\r\n\r\n" % framing
    said = (b"HTTP/1.1 103 Early Hints\r\nX-One: 0\r\n\r\n" if interim else b"") + head
    said += chunked(parts) if in_chunks else body

    async def exchange() -> None:
        bench = Bench()
        answer = await bench.answer(*in_pieces(said, cuts))
        assert (answer.head.status, answer.head.reason, answer.head.fields["x-one"]) == (200, "Fine", "1")
        assert answer.head.cookies == ("a=b", "c=d")
        assert await answer.read(len(body)) == body
        assert answer.is_complete
        answer.release()
        assert (bench.freed, bench.lost, bench.transport.ended) == (1, 0, None)
        again = await bench.answer(WHOLE)
        assert await again.read(5) == b"hello"

    anyio.run(exchange)


@given(st.binary(min_size=1, max_size=400), CUTS)
def test_whatever_a_server_says_an_exchange_ends_or_waits(said: bytes, cuts: list[int]) -> None:
    async def exchange() -> None:
        bench = Bench()
        with anyio.move_on_after(0.01):
            try:
                answer = await bench.answer(*in_pieces(said, cuts))
                await answer.read(1000)
            except (ConnectionBroken, ResponseTooLarge):
                return

    anyio.run(exchange)


async def test_the_request_is_written_at_once() -> None:
    bench = Bench()
    with anyio.fail_after(GUARD):
        async with feeding(lambda: bench.feed([WHOLE])):
            await bench.connection.exchange(REQUEST)
    assert bench.transport.written == REQUEST


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it sends something other than HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "it sends something other than HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "other than HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "was not asked for"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD, "headers are larger than 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * MAX_HEAD, "headers are larger than 65536 bytes"),
        (b"HTTP/1.1 100 \r\n\r\n" * MAX_HEAD, "headers are larger than 65536 bytes"),
    ],
)
async def test_what_is_no_answer_ends_the_connection(said: bytes, why: str) -> None:
    bench = Bench()
    failed = await broken(bench, *in_pieces(said, range(0, len(said), 1000)))
    assert why in str(failed)
    assert not failed.is_unanswered
    assert (bench.transport.ended, bench.lost) == ("aborted", 1)


async def test_a_server_that_hangs_up_before_its_answer_is_told_from_one_that_hangs_up_within() -> None:
    silent, begun = Bench(), Bench()
    with pytest.raises(ConnectionBroken) as nothing, anyio.fail_after(GUARD):
        async with feeding(lambda: silent.connection.connection_lost(None)):
            await silent.connection.exchange(REQUEST)
    answer = await begun.answer(BEGUN)
    begun.connection.eof_received()
    with pytest.raises(ConnectionBroken) as half:
        await answer.read(5)
    assert (nothing.value.is_unanswered, half.value.is_unanswered) == (True, False)
    assert (silent.ignored, begun.ignored) == (1, 0)


async def test_what_came_before_the_end_can_still_be_read() -> None:
    bench = Bench()
    answer = await bench.answer(BEGUN)
    bench.connection.connection_lost(ConnectionResetError("reset by peer"))
    assert await anext(answer) == b"he"
    with pytest.raises(ConnectionBroken, match="reset by peer"):
        await anext(answer)


async def test_a_body_without_a_length_lasts_until_the_server_closes() -> None:
    bench = Bench()
    answer = await bench.answer(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo")
    bench.connection.eof_received()
    assert await answer.read(5) == b"hello"
    answer.release()
    assert (bench.freed, bench.lost) == (0, 1)


async def test_a_body_without_a_length_that_breaks_off_is_not_whole() -> None:
    bench = Bench()
    answer = await bench.answer(b"HTTP/1.1 200 OK\r\n\r\nhel")
    bench.connection.connection_lost(ConnectionResetError("reset"))
    with pytest.raises(ConnectionBroken, match="reset"):
        await answer.read(5)


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_an_answer_that_has_no_body_needs_no_length(status: bytes) -> None:
    bench = Bench()
    answer = await bench.answer(b"HTTP/1.1 %b\r\n\r\n" % status)
    assert await answer.read(0) == b""
    answer.release()
    assert bench.freed == 1


async def test_a_server_that_says_more_than_asked_is_hung_up_on_and_its_answer_kept() -> None:
    for more in (WHOLE, b"\x00\x01", b"HTTP/1.1"):
        bench = Bench()
        answer = await bench.answer(WHOLE + more)
        assert await answer.read(5) == b"hello"
        answer.release()
        assert (bench.freed, bench.lost, bench.transport.ended) == (0, 1, "aborted")


async def test_a_server_that_speaks_unasked_is_hung_up_on() -> None:
    bench = Bench()
    (await bench.answer(WHOLE)).release()
    bench.feed([b"HTTP/1.1 408 Request Timeout\r\n\r\n"])
    assert (bench.lost, bench.transport.ended) == (1, "aborted")


async def test_a_connection_that_the_server_closes_afterwards_serves_no_more() -> None:
    bench = Bench()
    answer = await bench.answer(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello")
    assert await answer.read(5) == b"hello"
    answer.release()
    assert (bench.freed, bench.lost, bench.transport.ended) == (0, 1, "closed")


async def test_r25_cancelling_an_exchange_closes_its_connection() -> None:
    bench = Bench()
    async with anyio.create_task_group() as tasks, feeding(tasks.cancel_scope.cancel):
        await bench.connection.exchange(REQUEST)
    assert (bench.transport.ended, bench.lost) == ("aborted", 1)


async def test_r25_a_request_cancelled_once_all_has_come_ends_no_exchange_of_another() -> None:
    bench, answers = Bench(), list[bytes]()

    async def ask() -> None:
        answer = await bench.connection.exchange(REQUEST)
        answers.append(await answer.read(100))

    async with asyncio.timeout(GUARD), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(ask())
        await anyio.wait_all_tasks_blocked()
        tasks.create_task(ask())
        bench.feed([WHOLE])
        first.cancel()
        await anyio.wait_all_tasks_blocked()
        bench.feed([WHOLE])
    assert first.cancelled()
    assert (answers, bench.freed, bench.transport.ended) == ([b"hello"], 2, None)


async def test_an_answer_that_is_closed_early_takes_its_connection_along() -> None:
    bench = Bench()
    (await bench.answer(BEGUN)).close()
    assert (bench.freed, bench.transport.ended) == (0, "aborted")


async def test_an_answer_that_is_released_early_frees_its_connection_when_the_rest_has_come() -> None:
    bench = Bench()
    answer = await bench.answer(BEGUN)
    answer.release()
    assert bench.freed == 0
    bench.feed([b"llo"])
    assert (bench.freed, bench.transport.ended) == (1, None)
    assert await (await bench.answer(WHOLE)).read(5) == b"hello"


async def test_an_answer_that_is_released_early_and_does_not_end_is_given_up() -> None:
    bench = Bench()
    answer = await bench.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    answer.release()
    piece = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    bench.feed([piece] * (LAST_BYTES // 0x1000 + 1))
    assert (bench.freed, bench.lost, bench.transport.ended) == (0, 1, "aborted")


async def test_r23_a_body_that_is_not_taken_makes_its_server_wait() -> None:
    bench = Bench()
    answer = await bench.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n", b"x" * MAX_UNREAD)
    assert bench.transport.reading
    bench.feed([b"y"])
    assert not bench.transport.reading
    assert len(await anext(answer)) == MAX_UNREAD + 1
    assert bench.transport.reading


async def test_a_body_that_is_read_whole_never_waits_and_wakes_its_reader_at_its_end() -> None:
    bench = Bench()
    size = 3 * MAX_UNREAD
    answer = await bench.answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    reading = asyncio.ensure_future(answer.read(size))
    await anyio.wait_all_tasks_blocked()
    for piece in (b"x" * MAX_UNREAD, b"y", b"z" * (MAX_UNREAD - 2), b"y", b"x" * (MAX_UNREAD - 1)):
        bench.feed([piece])
        await anyio.wait_all_tasks_blocked()
        assert (bench.transport.reading, reading.done()) == (True, False)
    bench.feed([b"!"])
    body = await reading
    assert (len(body), body[-1:], body.count(b"y"), body.count(b"x")) == (size, b"!", 2, 2 * MAX_UNREAD - 1)


async def test_r16_a_body_that_is_read_whole_is_refused_with_the_first_byte_over_its_limit() -> None:
    bench = Bench()
    answer = await bench.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    reading = asyncio.ensure_future(answer.read(2 * MAX_UNREAD))
    await anyio.wait_all_tasks_blocked()
    bench.feed([b"%x\r\n" % (2 * MAX_UNREAD + 1), b"x" * 2 * MAX_UNREAD])
    await anyio.wait_all_tasks_blocked()
    assert not reading.done()
    bench.feed([b"x"])
    with pytest.raises(ResponseTooLarge):
        await reading
    assert not bench.transport.reading


async def test_short_pieces_between_long_ones_keep_their_places() -> None:
    bench = Bench()
    pieces = [bytes([65 + number % 26]) * (LONG_PIECE * (number % 3) + 1) for number in range(60)]
    whole = b"".join(pieces)
    answer = await bench.answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(whole))
    bench.feed(pieces)
    assert await answer.read(len(whole)) == whole


async def test_r23_a_connection_is_free_when_all_has_come_and_reads_on_even_if_its_body_was_not_taken() -> None:
    bench = Bench()
    size = 2 * MAX_UNREAD
    answer = await bench.answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, b"x" * (size - 1))
    assert (bench.transport.reading, bench.freed) == (False, 0)
    bench.feed([b"y"])
    assert (bench.transport.reading, bench.freed) == (True, 1)
    again = await bench.answer(BEGUN)
    answer.close()
    assert len(await answer.read(size)) == size
    assert (bench.transport.ended, await anext(again)) == (None, b"he")


async def test_trailers_without_end_are_not_taken_in() -> None:
    bench = Bench()
    answer = await bench.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\nX: ")
    bench.feed([b"x" * 1000] * (MAX_HEAD // 1000 + 1))
    with pytest.raises(ConnectionBroken, match="headers are larger"):
        await answer.read(0)


async def test_r16_a_body_over_its_readers_limit_is_not_taken_in() -> None:
    bench = Bench()
    answer = await bench.answer(WHOLE)
    with pytest.raises(ResponseTooLarge):
        await answer.read(4)


@pytest.mark.parametrize(
    ("name", "value"),
    [("X", "a\r\nY: b"), ("X", "a\nb"), ("X", "a\0"), ("X\r\nY", "a"), ("X Y", "a"), ("", "a"), ("X:", "a")],
)
def test_r20_a_header_never_becomes_two(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="holds characters that no header may"):
        write_head("POST", URL("http://h/"), {name: value})


def test_a_request_names_its_host_and_target_as_they_go_over_the_wire() -> None:
    head = write_head("POST", URL("http://bücher.example:8080/ö?q=a b#part"), {"X-Name": "größe"})
    assert write_request(head, b"abc").decode().split("\r\n") == [
        "POST /%C3%B6?q=a+b HTTP/1.1",
        "Host: xn--bcher-kva.example:8080",
        "X-Name: größe",
        "Content-Length: 3",
        "",
        "abc",
    ]
    assert b"Host: [::1]\r\n" in write_head("GET", URL("http://[::1]/"), {})
