"""The client beside h11: any sequence of responses, in any pieces, is read as h11 reads it, once each, in order."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcproxy.http.client import ConnectionBroken
from mcproxy.http.client.connection import MAX_HEAD
from mcproxy.http.client.response import LAST_BYTES, MAX_UNREAD
from tests.depth import examples
from tests.http.client.test_connection import REQUEST, Bench, in_pieces
from tests.timeouts import GUARD

EDGES = sorted({edge + step for edge in (0, LAST_BYTES, MAX_HEAD, MAX_UNREAD, 2 * MAX_UNREAD) for step in (-1, 0, 1)})
"""Sizes of bodies around every buffer's."""
TURNS = 30
"""Of the loop, after which everything that can go on without the server has."""
LIMIT = 10_000_000


@dataclass(frozen=True)
class Sent:
    """One response of a server."""

    body: int = 0
    """Bytes."""
    chunk: int | None = None
    """Bytes of each chunk of the body; None for a body with a length."""
    status: int = 200
    interim: int = 0
    """Interim responses before it."""
    is_last: bool = False
    has_length: bool = True
    """False for a body that ends with the connection."""

    @property
    def ends_with_connection(self) -> bool:
        return self.status == 200 and self.chunk is None and not self.has_length

    def encoded(self) -> bytes:
        lines = [b"HTTP/1.1 %d Fine" % self.status, b"X-One: 1"]
        if self.is_last:
            lines.append(b"Connection: close")
        content = bytes(index % 251 for index in range(min(self.body, 251))) * (self.body // 251 + 1)
        content = content[: self.body]
        if self.status != 200:
            content = b""
        elif self.chunk is not None:
            lines.append(b"Transfer-Encoding: chunked")
            parts = [content[start : start + self.chunk] for start in range(0, len(content), self.chunk)]
            content = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        elif self.has_length:
            lines.append(b"Content-Length: %d" % self.body)
        early = b"HTTP/1.1 103 Early Hints\r\nX-One: 0\r\n\r\n" * self.interim
        return early + b"\r\n".join([*lines, b"", content])


Seen = tuple[int, bytes]


def read_by_oracle(said: bytes, *, has_ended: bool) -> Seen:
    """The status and body of the one response that h11 reads."""
    oracle = h11.Connection(h11.CLIENT)
    oracle.send(h11.Request(method="POST", target="/", headers=[("Host", "here")]))
    oracle.send(h11.EndOfMessage())
    oracle.receive_data(said)
    if has_ended:
        oracle.receive_data(b"")
    while isinstance(event := oracle.next_event(), h11.InformationalResponse):
        pass
    assert isinstance(event, h11.Response), event
    body = bytearray()
    while isinstance(part := oracle.next_event(), h11.Data):
        body += part.data
    assert isinstance(part, h11.EndOfMessage), part
    return event.status_code, bytes(body)


async def converse(bench: Bench, sent: Sent, sizes: Sequence[int], *, iterates: bool, is_slow: bool) -> Seen:
    """One request and its response. Fails if bytes stay unread for ever."""
    gate = asyncio.Event()

    async def ask() -> Seen:
        response = await bench.connection.exchange(REQUEST)
        if is_slow:
            await gate.wait()
        if not iterates:
            return response.head.status, await response.read(LIMIT)
        return response.head.status, b"".join([piece async for piece in response])

    said = sent.encoded()
    cuts, place = list[int](), 0
    while place < len(said) and len(cuts) < 300:
        place += sizes[len(cuts) % len(sizes)]
        cuts.append(place)
    pieces = in_pieces(said, [cut for cut in cuts if cut <= len(said)])
    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    idle_turns = 0
    while pieces:
        if bench.transport.reading:
            bench.feed([pieces.pop(0)])
            idle_turns = 0
        else:
            idle_turns += 1
            if idle_turns > TURNS:
                gate.set()  # nobody reads yet
            assert idle_turns < 2 * TURNS, f"{bench.connection.state}, and nothing goes on"
        await asyncio.sleep(0)
    if sent.ends_with_connection:
        bench.connection.eof_received()
    gate.set()
    return await asyncio.wait_for(task, GUARD)


RESPONSES = st.builds(
    Sent,
    body=st.sampled_from(EDGES[1:]) | st.integers(0, 2000),
    chunk=st.none() | st.sampled_from((1000, 4096, 70_000, 600_000)),
    status=st.sampled_from((200, 200, 200, 204, 304)),
    interim=st.integers(0, 2),
    is_last=st.sampled_from((False, False, False, True)),
    has_length=st.sampled_from((True, True, True, False)),
)


@settings(max_examples=examples(400))
@given(
    st.lists(RESPONSES, min_size=1, max_size=5),
    st.lists(st.sampled_from((1, 13, 4096, 64 * 1024, 256 * 1024)), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
)
@example([Sent(300_000), Sent(300_000), Sent(3)], [64 * 1024], False, True)
@example([Sent(2 * MAX_UNREAD, 4096), Sent(300_000), Sent(3)], [256 * 1024], True, True)
def test_responses_are_read_as_the_oracle_reads_them_once_each_in_order(
    sent: list[Sent], sizes: list[int], iterates: bool, is_slow: bool
) -> None:
    async def exchange() -> None:
        bench = Bench()
        for count, response in enumerate(sent, 1):
            read = await converse(bench, response, sizes, iterates=iterates, is_slow=is_slow)
            assert read == read_by_oracle(response.encoded(), has_ended=response.ends_with_connection)
            if response.is_last or response.ends_with_connection:
                assert bench.connection.is_closed
                return
            assert (bench.freed, bench.connection.is_idle) == (count, True)

    asyncio.run(exchange())


@settings(max_examples=examples(400))
@given(st.lists(RESPONSES, min_size=1, max_size=3), st.integers(0, 3000), st.integers(0, 60))
def test_a_response_that_breaks_off_is_never_taken_for_whole(sent: list[Sent], place: int, pieces: int) -> None:
    said = sent[0].encoded()
    if place >= len(said):
        return

    async def exchange() -> None:
        bench = Bench()
        task = asyncio.create_task(bench.connection.exchange(REQUEST))
        await asyncio.sleep(0)
        bench.feed(in_pieces(said[:place], range(0, place, pieces + 1)))
        bench.connection.connection_lost(ConnectionResetError())
        with pytest.raises(ConnectionBroken) as broken:
            await (await task).read(LIMIT)
        assert broken.value.is_unanswered is (place == 0)

    asyncio.run(exchange())


def test_r16_a_body_in_small_chunks_takes_no_more_room_than_it_has() -> None:
    async def exchange() -> None:
        bench = Bench()
        task = asyncio.create_task(bench.connection.exchange(REQUEST))
        await asyncio.sleep(0)
        bench.feed([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"])
        response = await task
        reading = asyncio.create_task(response.read(LIMIT))
        await asyncio.sleep(0)
        size = 100_000
        tracemalloc.start()
        for _ in range(size // 1000):
            bench.feed([b"2\r\nab\r\n" * 500])
            await asyncio.sleep(0)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        bench.feed([b"0\r\n\r\n"])
        assert await reading == b"ab" * (size // 2)
        assert held < 2 * size

    asyncio.run(exchange())
