"""Every edge of the client connection's table, taken by a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mcproxy.http.client import ClientResponse
from mcproxy.http.client.connection import (
    DROPPING_TIME,
    TRANSITIONS,
    ClientConnectionEvent,
    ClientConnectionState,
)
from mcproxy.http.client.response import MAX_UNREAD
from tests.http.client.test_connection import BEGUN, REQUEST, WHOLE, Bench
from tests.http.timers import CommandedLoop

MUCH = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * (MAX_UNREAD + 1)
KNOWN = WHOLE.replace(b"hello", b"again")


class Conversation:
    """A connection, and the response that it is at."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.task: asyncio.Task[ClientResponse] | None = None

    async def idle(self) -> None:
        return

    async def waiting(self) -> None:
        self.task = asyncio.create_task(self.bench.connection.exchange(REQUEST))
        await asyncio.sleep(0)

    async def reading(self) -> None:
        await self.waiting()
        self.bench.feed([BEGUN])
        await asyncio.sleep(0)

    async def nearly_full(self) -> None:
        await self.waiting()
        self.bench.feed([MUCH[:100]])
        await asyncio.sleep(0)

    async def full(self) -> None:
        await self.waiting()
        self.bench.feed([MUCH])
        await asyncio.sleep(0)

    async def dropping(self) -> None:
        await self.reading()
        (await self.response).release()

    async def known(self) -> None:
        """Waits for a response whose head is remembered."""
        await self.waiting()
        self.bench.feed([WHOLE])
        await self.response
        await self.waiting()

    @property
    def response(self) -> asyncio.Task[ClientResponse]:
        assert self.task is not None
        return self.task


S, E = ClientConnectionState, ClientConnectionEvent
Step = Callable[[Conversation], object]

EDGES: dict[tuple[ClientConnectionState, ClientConnectionEvent], tuple[Callable[[Conversation], Awaitable[None]], Step]]
EDGES = {
    (S.IDLE, E.REQUEST_SENT): (Conversation.idle, lambda it: it.waiting()),
    (S.IDLE, E.LOST): (Conversation.idle, lambda it: it.bench.connection.close()),
    (S.WAITING, E.BYTES_READ): (Conversation.waiting, lambda it: it.bench.feed([b"HTTP"])),
    (S.WAITING, E.RESPONSE_READ): (Conversation.known, lambda it: it.bench.feed([KNOWN])),
    (S.WAITING, E.LOST): (Conversation.waiting, lambda it: it.bench.connection.eof_received()),
    (S.READING, E.BODY_FULL): (Conversation.nearly_full, lambda it: it.bench.feed([MUCH[100:]])),
    (S.READING, E.RELEASED): (Conversation.reading, lambda it: it.response.result().release()),
    (S.READING, E.RESPONSE_READ): (Conversation.reading, lambda it: it.bench.feed([b"llo"])),
    (S.READING, E.LOST): (Conversation.reading, lambda it: it.response.result().close()),
    (S.FULL, E.BODY_TAKEN): (Conversation.full, lambda it: anext(it.response.result())),
    (S.FULL, E.RELEASED): (Conversation.full, lambda it: it.response.result().release()),
    (S.FULL, E.RESPONSE_READ): (Conversation.full, lambda it: it.bench.feed([b"x" * (1_000_000 - MAX_UNREAD - 1)])),
    (S.FULL, E.LOST): (Conversation.full, lambda it: it.bench.connection.connection_lost(None)),
    (S.DROPPING, E.RESPONSE_READ): (Conversation.dropping, lambda it: it.bench.feed([b"llo"])),
    (S.DROPPING, E.LOST): (Conversation.dropping, lambda it: it.bench.connection.abort()),
}


def test_every_edge_is_taken() -> None:
    assert set(EDGES) == {(state, event) for state, row in TRANSITIONS.items() for event in row}


@pytest.mark.parametrize(("state", "event"), EDGES, ids=lambda each: each.name)
def test_a_connection_goes_where_its_table_says(state: ClientConnectionState, event: ClientConnectionEvent) -> None:
    async def walk() -> None:
        it = Conversation()
        reach, step = EDGES[state, event]
        await reach(it)
        connection = it.bench.connection
        assert connection.state is state
        result = step(it)
        if isinstance(result, Awaitable):
            await result
        assert connection.state is TRANSITIONS[state][event]
        if event is not E.LOST:
            assert it.bench.transport.reading is (connection.state is not S.FULL)
        assert connection.is_idle is (connection.state is S.IDLE)
        assert connection.is_closed is (connection.state is S.CLOSED)
        connection.abort()
        if it.task is not None:
            await asyncio.gather(it.task, return_exceptions=True)

    asyncio.run(walk())


def test_a_released_response_that_does_not_end_in_time_ends_its_connection() -> None:
    loop = CommandedLoop()

    async def wait() -> None:
        it = Conversation()
        await it.dropping()
        await loop.advance(DROPPING_TIME - 0.1)
        assert it.bench.connection.state is S.DROPPING
        await loop.advance(0.2)
        assert it.bench.transport.ended == "aborted"

    loop.run(wait())


def test_r4_a_connection_expires_before_its_server_closes_it() -> None:
    loop = CommandedLoop()

    async def wait() -> None:
        it = Conversation()
        await it.waiting()
        it.bench.feed([WHOLE.replace(b"Content", b"Keep-Alive: timeout=5\r\nContent", 1)])
        await loop.advance(3.9)
        assert not it.bench.connection.has_expired(loop.time())
        await loop.advance(0.2)
        assert it.bench.connection.has_expired(loop.time())
        await it.response

    loop.run(wait())


def test_a_connection_expires_when_it_was_idle_for_as_long_as_it_may() -> None:
    loop = CommandedLoop()

    async def wait() -> None:
        it = Conversation()
        await it.waiting()
        await loop.advance(100)
        assert not it.bench.connection.has_expired(loop.time()), "it is not idle"
        it.bench.feed([WHOLE])
        await loop.advance(14)
        assert not it.bench.connection.has_expired(loop.time())
        await loop.advance(2)
        assert it.bench.connection.has_expired(loop.time())
        await it.response

    loop.run(wait())
