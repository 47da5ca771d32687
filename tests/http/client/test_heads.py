"""The twin of `mcproxy.http.client.heads`: what is recognised is what the parser would have made of it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import anyio
import anyio.lowlevel
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcproxy.http.client.connection import ClientConnection
from mcproxy.http.client.heads import ResponseHead, read_head
from mcproxy.http.client.response import (
    LAST_BYTES,
    MAX_UNREAD,
    MAX_UNREAD_WHOLE,
    ClientResponse,
    ConnectionBroken,
    ResponseTooLarge,
)
from mcproxy.http.head_cache import HeadCache
from tests.http.client.test_connection import REQUEST, Bench, feeding, in_pieces
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

BEFORE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nX-One: 1\r\nContent-Length: "
AFTER = b"\r\nDate: Sat, 21 Nov 2026 19:00:00 GMT\r\n\r\n"


def answered(body: bytes, length: bytes | None = None) -> bytes:
    return BEFORE + (b"%d" % len(body) if length is None else length) + AFTER + body


class Forgetful(HeadCache[ResponseHead]):
    """Leaves everything to the parser."""

    def add(self, *_: object) -> None:
        return


class Met(Bench):
    """A connection to a server whose last head `heads` has."""

    def __init__(self, heads: HeadCache[ResponseHead]) -> None:
        super().__init__()
        self.connection = ClientConnection(self._free, self._lose, heads)
        self.connection.connection_made(self.transport)


def recognised_after(first: bytes, second: bytes) -> bool:
    """Whether `second` is recognised after `first`: then it has the very same head."""
    known, heads = HeadCache[ResponseHead](), list[ResponseHead]()

    async def exchange() -> None:
        for said in (first, second):
            answer = await Met(known).answer(said)
            heads.append(answer.head)
            await answer.read(20_000)

    anyio.run(exchange)
    return heads[0] is heads[1]


@pytest.mark.parametrize(
    ("said", "kept_for"),
    [
        (b"timeout=5", 4),
        (b"timeout=60, max=100", 59),
        (b"max=100, Timeout = 20", 19),
        (b"timeout=1", 0.5),
        (b"timeout=0", 0),
        (b"timeout=" + b"9" * 30, math.inf),
        (b"timeout=soon", math.inf),
        (b"read-timeout=5", math.inf),
        (b"", math.inf),
    ],
)
def test_a_server_says_for_how_long_it_keeps_a_connection(said: bytes, kept_for: float) -> None:
    assert read_head(200, b"OK", [(b"Keep-Alive", said)]).kept_for == kept_for


def test_white_space_behind_a_value_is_no_part_of_it() -> None:
    head = read_head(200, b"OK", [(b"Mcp-Session-Id", b"a b \t"), (b"Set-Cookie", b"c=d ")])
    assert head.fields["mcp-session-id"] == "a b"
    assert head.cookies == ("c=d",)


def test_an_answer_that_differs_in_its_length_and_its_body_alone_is_recognised() -> None:
    assert recognised_after(answered(b"hello"), answered(b"hello, world"))


@pytest.mark.parametrize(
    "length", [0, 1, 8, 9, 10, 11, 97, 98, 99, 100, 101, 996, 997, 998, 999, 1000, 9996, 9999, 10000]
)
def test_an_answer_of_any_length_is_recognised(length: int) -> None:
    assert recognised_after(answered(b"hello"), answered(b"x" * length))


@pytest.mark.parametrize(
    "first",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nContent-Length: %d\r\n\r\n" % len(answered(b"hello")) + answered(b"hello"),
        b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX-Long: %b\r\nContent-Length: 5\r\n\r\nhello" % (b"x" * 5000),
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_what_is_framed_in_another_way_is_not_remembered(first: bytes) -> None:
    assert not recognised_after(first, first)


def test_what_was_no_answer_to_the_end_is_not_remembered() -> None:
    assert not recognised_after(answered(b"hello") + b"HTTP", answered(b"hello"))


TURNS = 10
"""Of the loop, after which an exchange that is not over waits for more."""
SECOND = answered(b'{"id":2}')
MUTATIONS = st.tuples(st.integers(0, len(SECOND) - 1), st.integers(0, 3), st.binary(max_size=3))


async def told(known: HeadCache[ResponseHead], said: bytes, cuts: Iterable[int]) -> list[object]:
    """What becomes of an exchange in which a server says that, after one that went well; and of the next."""
    bench = Met(known)
    outcome: list[object] = []

    async def exchange(pieces: Iterable[bytes]) -> None:
        try:
            answer = await bench.answer(*pieces)
            outcome.extend([answer.head, await answer.read(1000), answer.is_complete])
        except (ConnectionBroken, ResponseTooLarge) as error:
            outcome.extend([type(error), str(error)])

    for count, pieces in enumerate(([answered(b"hello")], in_pieces(said, cuts), [answered(b"and on")]), 1):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(exchange, pieces)
            for _ in range(TURNS):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        outcome.append((bench.freed, bench.lost, bench.transport.ended))
        if bench.lost or bench.freed < count:
            break
    return outcome


@given(st.lists(MUTATIONS, max_size=3), st.binary(max_size=20), st.lists(st.integers(0, 400), max_size=3))
@example([], b"", [])
@example([], b"\r\n", [])
@example([], b"HTTP/1.1 200 OK\r\n\r\n", [])
@example([(len(BEFORE), 1, b"+8")], b"", [])
@example([(len(BEFORE), 1, b"008")], b"", [])
@example([(len(BEFORE), 1, b"")], b"", [])
@example([(len(BEFORE), 1, b"8\r\nTransfer-Encoding: chunked")], b"", [])
@example([(len(BEFORE), 1, b"8\r\nContent-Length: 8")], b"", [])
@example([(0, 0, b"HTTP/1.1 100 Continue\r\n\r\n")], b"", [])
@example([(0, 0, b"HTTP/1.1 100 Continue\r\n\r\n")], b"", [25])
def test_a_server_that_is_recognised_is_told_from_none_that_is_not(
    mutations: list[tuple[int, int, bytes]], more: bytes, cuts: list[int]
) -> None:
    said = SECOND
    for place, length, other in mutations:
        said = said[:place] + other + said[place + length :]
    said += more
    assert anyio.run(told, HeadCache(), said, cuts) == anyio.run(told, Forgetful(), said, cuts)


@pytest.mark.parametrize("body", [b"", b'{"id":2}', b"longer than its head: " * 10])
def test_a_known_head_is_one_wherever_it_is_cut(body: bytes) -> None:
    said = answered(body)
    for place in range(len(said)):
        outcome = anyio.run(told, HeadCache(), said, [place])
        assert outcome == anyio.run(told, Forgetful(), said, [place])
        assert outcome[5] == body


async def begun_answer(length: int, arrived: int) -> tuple[Met, ClientResponse]:
    """A known server's answer with a body of that length, of which so many bytes arrived."""
    bench = Met(HeadCache())
    await bench.answer(answered(b"hello"))
    pieces = (b"x" * min(MAX_UNREAD, arrived - at) for at in range(0, arrived, MAX_UNREAD))
    return bench, await bench.answer(answered(b"", b"%d" % length) + next(pieces), *pieces)


async def test_a_long_body_whose_length_is_known_waits_whole_for_its_reader() -> None:
    bench, answer = await begun_answer(MAX_UNREAD_WHOLE, MAX_UNREAD_WHOLE - 1)
    assert bench.transport.reading
    bench.feed([b"!"])
    body = await answer.read(MAX_UNREAD_WHOLE)
    assert (len(body), body[-1:], bench.freed) == (MAX_UNREAD_WHOLE, b"!", 2)


async def test_a_body_that_is_longer_than_any_waits_with_its_server() -> None:
    bench, answer = await begun_answer(2 * MAX_UNREAD_WHOLE, MAX_UNREAD_WHOLE + 1)
    assert not bench.transport.reading
    assert len(await anext(answer)) == MAX_UNREAD_WHOLE + 1
    assert bench.transport.reading


@pytest.mark.parametrize(("missing", "freed"), [(LAST_BYTES, 2), (LAST_BYTES + 1, 1)])
async def test_a_known_servers_answer_that_is_released_ends_soon_or_is_given_up(missing: int, freed: int) -> None:
    bench, answer = await begun_answer(MAX_UNREAD + missing, MAX_UNREAD)
    answer.release()
    bench.feed([b"x" * missing])
    assert (bench.freed, bench.lost) == (freed, 2 - freed)


async def test_what_is_known_of_a_server_holds_for_all_its_connections() -> None:
    known = HeadCache[ResponseHead]()
    first, second = [await Met(known).answer(answered(b"hello")) for _ in range(2)]
    assert second.head is first.head


async def test_a_server_that_speaks_unasked_is_hung_up_on_however_well_it_is_known() -> None:
    bench = Met(HeadCache())
    await bench.answer(answered(b"hello"))
    bench.feed([answered(b"hello")])
    assert (bench.transport.ended, bench.lost) == ("aborted", 1)
    bench = Met(HeadCache())
    answer = await bench.answer(answered(b"hello") * 2)
    assert await answer.read(5) == b"hello"
    assert (bench.transport.ended, bench.lost) == ("aborted", 1)


@pytest.mark.parametrize("begun", [b"", BEFORE, BEFORE + b"5" + AFTER, answered(b"hello")[:-1]])
async def test_a_known_server_that_hangs_up_within_its_answer_breaks_it(begun: bytes) -> None:
    bench = Met(HeadCache())
    await bench.answer(answered(b"hello"))

    def hang_up() -> None:
        bench.feed([begun] if begun else [])
        bench.connection.eof_received()

    with anyio.fail_after(GUARD), pytest.raises(ConnectionBroken) as broken:
        async with feeding(hang_up):
            await (await bench.connection.exchange(REQUEST)).read(5)
    assert (broken.value.is_unanswered, bench.ignored) == (not begun, not begun)


async def test_r25_what_comes_after_an_exchange_was_cancelled_is_not_taken_for_an_answer() -> None:
    bench = Met(HeadCache())
    await bench.answer(answered(b"hello"))
    with anyio.move_on_after(0.01) as scope:
        await bench.answer()
    assert scope.cancelled_caught
    bench.feed([answered(b"hello")])
    assert (bench.freed, bench.lost) == (1, 1)
