"""Every edge of the tables of the reader and of the connection, taken by real ones; and what the deadlines do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate

import pytest

from mcproxy.http import server as http
from mcproxy.http.server import reader as readers
from mcproxy.http.server import states
from mcproxy.http.server.connection import LAST_BYTES, LINGER, MAX_UNREAD
from mcproxy.http.server.reader import ReaderEvent, ReaderState, RequestReader
from mcproxy.http.server.states import ConnectionEvent, ConnectionState
from tests.http.server.driven import DrivenConnection, settle
from tests.http.server.serving import post
from tests.http.timers import CommandedLoop

GET = b"GET /x HTTP/1.1\r\nHost: here\r\n\r\n"
LAST = b"GET /x HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
MUCH = b"x" * (MAX_UNREAD + 1)
GARBAGE = b"\x00\r\n\r\n"

R, RE = ReaderState, ReaderEvent


class Elsewhere:
    """A transport that a reader needs nothing of."""

    max_body = 1_000_000


def reader_after(*pieces: bytes, knowing: bytes = b"") -> RequestReader:
    """A reader that read `pieces`; it remembers the head of `knowing`."""
    reader = RequestReader(Elsewhere())  # type: ignore[arg-type]  # it has all that is used of one
    for piece in (knowing, *pieces):
        reader.receive(piece)
        for request in reader.requests:
            reader.remember(request, None, None, frozenset())
    return reader


HEAD, BODY = GET[:20], post(b"bo", length=4)
READER_EDGES: dict[tuple[ReaderState, ReaderEvent], tuple[RequestReader, bytes | None]] = {
    (R.BETWEEN, RE.HEAD_BEGUN): (reader_after(), HEAD),
    (R.BETWEEN, RE.HEAD_KNOWN): (reader_after(knowing=post(b"body")), BODY),
    (R.BETWEEN, RE.REFUSED): (reader_after(), GARBAGE),
    (R.BETWEEN, RE.ENDED): (reader_after(), None),
    (R.HEAD, RE.HEAD_READ): (reader_after(BODY[:20]), BODY[20:]),
    (R.HEAD, RE.REFUSED): (reader_after(HEAD), b"\x00"),
    (R.HEAD, RE.ENDED): (reader_after(HEAD), None),
    (R.BODY, RE.BODY_READ): (reader_after(BODY), b"dy"),
    (R.BODY, RE.LAST_BODY_READ): (reader_after(post(b"bo", b"Connection: close", length=4)), b"dy"),
    (R.BODY, RE.REFUSED): (
        reader_after(b"POST /x HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"),
        b"zz\r\n",
    ),
    (R.BODY, RE.ENDED): (reader_after(BODY), None),
}


@pytest.mark.parametrize(("state", "event"), READER_EDGES, ids=lambda each: each.name)
def test_a_reader_goes_where_its_table_says(state: ReaderState, event: ReaderEvent) -> None:
    reader, data = READER_EDGES[state, event]
    assert reader.state is state
    if data is None:
        reader.stop()
    else:
        reader.receive(data)
    assert reader.state is readers.TRANSITIONS[state][event]
    assert (reader.refusal is not None) is (event is RE.REFUSED)


def test_an_offer_of_another_protocol_is_read_again_without_it() -> None:
    reader = reader_after(GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n") + HEAD)
    assert [(request.fields.get("upgrade"), request.target) for request in reader.requests] == [(None, "/x")]
    assert reader.state is R.HEAD
    assert readers.TRANSITIONS[R.HEAD][RE.UPGRADE_IGNORED] is R.BETWEEN


def test_every_edge_of_the_readers_table_is_taken() -> None:
    edges = {(state, event) for state, row in readers.TRANSITIONS.items() for event in row}
    assert {*READER_EDGES, (R.HEAD, RE.UPGRADE_IGNORED)} == edges


S, E = ConnectionState, ConnectionEvent


class Scene:
    """A connection whose handler goes on, and reads the body, once it is told to."""

    driven: DrivenConnection

    def __init__(self, tasks: asyncio.TaskGroup, **info: object) -> None:
        self.go_on = asyncio.Event()
        self.chunks: list[http.Chunks] = []
        self.streams = False
        self.driven = DrivenConnection(tasks, self.handler, BOUNDS_OF_MUCH, **info)

    async def handler(self, request: http.Request) -> http.Answered:
        if self.streams:
            self.chunks.append(request.start_stream(200, {}))
            return http.Streamed()
        await self.go_on.wait()
        if request.target == "/unread":
            return http.Response(200)
        return http.Response(200, await request.body(1000))

    async def answering(self) -> None:
        await self.send(GET)

    async def full(self) -> None:
        await self.send(GET, post(MUCH, length=2 * len(MUCH)))

    async def last(self) -> None:
        await self.send(LAST)

    async def left(self) -> None:
        await self.answering()
        self.driven.shut_down()

    async def lingering(self) -> None:
        await self.send(GARBAGE)

    async def closing(self) -> None:
        self.driven.connection.close()

    async def idle(self) -> None:
        return

    async def unread(self) -> None:
        """Handles a request most of whose body is missing."""
        await self.send(post(b"bo", target=b"/unread", length=LAST_BYTES * 2))

    async def last_and_refused(self) -> None:
        await self.send(GET + GARBAGE)

    async def full_behind_the_last_stream(self) -> None:
        """The stream was begun as the last response, and more requests were sent all the same."""
        self.streams = self.driven.closing = True
        await self.answering()
        await self.send(post(MUCH, length=2 * len(MUCH)))

    async def full_whole_behind_the_last_stream(self) -> None:
        self.streams = self.driven.closing = True
        await self.answering()
        await self.send(post(MUCH) + GET)

    async def send(self, *pieces: bytes) -> None:
        self.driven.send(*pieces)
        await settle()

    async def go(self) -> None:
        self.go_on.set()
        await settle()

    async def end_stream(self) -> None:
        self.chunks[0].end(b"all")


BOUNDS_OF_MUCH = http.Bounds(max_body=10 * len(MUCH), idle=60, write_timeout=20, connections=100, head_timeout=30)
Step = Callable[[Scene], object]

EDGES: dict[tuple[ConnectionState, ConnectionEvent], tuple[Callable[[Scene], Awaitable[None]], Step]] = {
    (S.IDLE, E.REQUEST_READ): (Scene.idle, Scene.answering),
    (S.IDLE, E.DONE): (Scene.idle, lambda it: it.driven.connection.close()),
    (S.IDLE, E.DONE_EARLY): (Scene.idle, lambda it: it.driven.send(GARBAGE)),
    (S.ANSWERING, E.BODIES_FULL): (Scene.answering, lambda it: it.driven.send(post(MUCH, length=2 * len(MUCH)))),
    (S.ANSWERING, E.ALL_ANSWERED): (Scene.answering, Scene.go),
    (S.ANSWERING, E.READING_STOPPED): (Scene.answering, lambda it: it.driven.send(GARBAGE)),
    (S.ANSWERING, E.CLIENT_SHUT_DOWN): (Scene.answering, lambda it: it.driven.shut_down()),
    (S.ANSWERING, E.DONE): (Scene.answering, lambda it: it.driven.connection.close()),
    (S.ANSWERING, E.DONE_EARLY): (Scene.unread, Scene.go),
    (S.FULL, E.BODIES_TAKEN): (Scene.full, Scene.go),
    (S.FULL, E.READING_STOPPED): (Scene.full, lambda it: it.driven.connection.refuse(400, "enough")),
    (S.FULL, E.CLIENT_SHUT_DOWN): (Scene.full, lambda it: it.driven.connection.eof_received()),
    (S.FULL, E.DONE): (Scene.full_whole_behind_the_last_stream, Scene.end_stream),
    (S.FULL, E.DONE_EARLY): (Scene.full_behind_the_last_stream, Scene.end_stream),
    (S.LAST, E.CLIENT_SHUT_DOWN): (Scene.last, lambda it: it.driven.shut_down()),
    (S.LAST, E.DONE): (Scene.last, Scene.go),
    (S.LAST, E.DONE_EARLY): (Scene.last_and_refused, Scene.go),
    (S.LEFT, E.DONE): (Scene.left, Scene.go),
    (S.LINGERING, E.DONE): (Scene.lingering, lambda it: it.driven.shut_down()),
    **{
        (state, E.LOST): (reach, lambda it: it.driven.lose())
        for state, reach in {
            S.IDLE: Scene.idle,
            S.ANSWERING: Scene.answering,
            S.FULL: Scene.full,
            S.LAST: Scene.last,
            S.LEFT: Scene.left,
            S.LINGERING: Scene.lingering,
            S.CLOSING: Scene.closing,
        }.items()
    },
}


def test_every_edge_of_the_connections_table_is_taken() -> None:
    assert set(EDGES) == {(state, event) for state, row in states.TRANSITIONS.items() for event in row}


@pytest.mark.parametrize(("state", "event"), EDGES, ids=lambda each: each.name)
def test_a_connection_goes_where_its_table_says(state: ConnectionState, event: ConnectionEvent) -> None:
    async def walk() -> None:
        async with asyncio.TaskGroup() as tasks:
            scene = Scene(tasks)
            reach, step = EDGES[state, event]
            await reach(scene)
            driven = scene.driven
            assert driven.connection.state is state
            result = step(scene)
            if isinstance(result, Awaitable):
                await result
            assert driven.connection.state is states.TRANSITIONS[state][event]
            if driven.connection.state not in (S.LEFT, S.CLOSING, S.CLOSED):
                assert driven.transport.is_paused is (driven.connection.state is S.FULL)
            scene.go_on.set()
            driven.lose()
            await settle()

    asyncio.run(walk())


# Deadlines


def run(play: Callable[[CommandedLoop, asyncio.TaskGroup], Awaitable[None]]) -> None:
    """Runs `play` on a loop whose clock it commands."""
    loop = CommandedLoop()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            await play(loop, tasks)

    loop.run(main())


@pytest.mark.parametrize("pieces", [1, 5, 25])
def test_r8_a_head_that_trickles_is_refused_after_its_time_however_often_bytes_come(pieces: int) -> None:
    async def play(loop: CommandedLoop, tasks: asyncio.TaskGroup) -> None:
        driven = Scene(tasks).driven
        driven.send(GET[:1])
        for place in range(pieces):
            await loop.advance(29 / pieces)
            driven.send(GET[1 + place : 2 + place])
        assert driven.said == b""
        await loop.advance(1.1)
        assert driven.said.startswith(b"HTTP/1.1 408 ")
        assert driven.said.endswith(b"the header block did not arrive within 30 s(shut down)")
        driven.lose()

    run(play)


def test_r8_a_head_that_comes_in_time_is_served_and_the_next_has_its_own_time() -> None:
    async def play(loop: CommandedLoop, tasks: asyncio.TaskGroup) -> None:
        scene = Scene(tasks)
        driven = scene.driven
        scene.go_on.set()
        for count in range(1, 4):
            await loop.advance(20)
            driven.send(GET[:9])
            await loop.advance(20)
            driven.send(GET[9:] + GET[:9])
            await loop.advance(20)
            driven.send(GET[9:])
            await settle()
            assert driven.said.count(b"HTTP/1.1 200 ") == 2 * count
        driven.lose()

    run(play)


def test_r8_a_head_that_trickles_behind_a_request_that_is_answered_ends_reading_alone() -> None:
    async def play(loop: CommandedLoop, tasks: asyncio.TaskGroup) -> None:
        scene = Scene(tasks)
        driven = scene.driven
        driven.send(GET + GET[:9])
        await loop.advance(31)
        assert driven.state == "LAST"
        await scene.go()
        assert driven.said.startswith(b"HTTP/1.1 200 ")
        assert b"408" not in driven.said
        driven.lose()

    run(play)


def test_a_client_that_goes_on_sending_behind_the_last_response_is_hung_up_on_after_a_moment() -> None:
    async def play(loop: CommandedLoop, tasks: asyncio.TaskGroup) -> None:
        driven = Scene(tasks).driven
        driven.send(GARBAGE)
        await loop.advance(LINGER - 0.1)
        driven.send(MUCH)
        assert driven.transport.has_ended == "shut down"
        await loop.advance(0.2)
        assert driven.transport.has_ended == "reset"
        driven.lose()

    run(play)


def certificate(seconds: float) -> dict[str, str]:
    """A client's certificate that expires in so many seconds, as `ssl.SSLSocket.getpeercert` tells it."""
    stamp = time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(time.time() + seconds))
    return {"notAfter": stamp}


def test_a_connection_ends_with_its_clients_certificate() -> None:
    async def play(loop: CommandedLoop, tasks: asyncio.TaskGroup) -> None:
        scene = Scene(tasks, peercert=certificate(3600))
        scene.go_on.set()
        await scene.send(GET)
        await loop.advance(3500)
        await scene.send(GET)
        assert scene.driven.said.count(b"HTTP/1.1 200 ") == 2
        await loop.advance(200)
        assert scene.driven.transport.has_ended == "closed"
        scene.driven.lose()

    run(play)


def test_what_is_being_answered_when_a_certificate_expires_is_answered_and_what_waits_behind_it_is_not() -> None:
    async def play(loop: CommandedLoop, tasks: asyncio.TaskGroup) -> None:
        scene = Scene(tasks, peercert=certificate(3600))
        await scene.send(GET + GET)
        await loop.advance(3700)
        await scene.send(GET)
        await scene.go()
        assert scene.driven.said.count(b"HTTP/1.1 200 ") == 1
        assert b"Connection: close" in scene.driven.said
        assert scene.driven.transport.has_ended == "closed"
        scene.driven.lose()

    run(play)


def test_a_stream_ends_when_the_certificate_of_its_client_expires() -> None:
    async def play(loop: CommandedLoop, tasks: asyncio.TaskGroup) -> None:
        scene = Scene(tasks, peercert=certificate(3600))
        scene.streams = True
        await scene.send(GET)
        await loop.advance(3700)
        assert scene.driven.transport.has_ended == "reset"
        scene.driven.lose()

    run(play)


def test_the_dates_of_certificates_are_those_of_python() -> None:
    assert certificate(0)["notAfter"][-3:] == formatdate(usegmt=True)[-3:]


# Clients that shut down their side


def test_a_client_that_shuts_down_its_side_is_answered_all_that_it_asked() -> None:
    async def play(loop: CommandedLoop, tasks: asyncio.TaskGroup) -> None:
        scene = Scene(tasks)
        await scene.send(GET + post(b"two") + GET)
        assert scene.driven.shut_down()
        await scene.go()
        assert scene.driven.said.count(b"HTTP/1.1 200 ") == 3
        assert scene.driven.said.count(b"Connection: close") == 1
        assert scene.driven.transport.has_ended == "closed"
        scene.driven.lose()

    run(play)


def test_a_handler_is_told_once_that_its_client_may_have_left() -> None:
    async def play(loop: CommandedLoop, tasks: asyncio.TaskGroup) -> None:
        told: list[bool] = []
        gone = asyncio.Event()

        async def handler(request: http.Request) -> http.Response:
            request.on_disconnect = lambda: told.append(request.is_disconnected)
            await gone.wait()
            return http.Response(200)

        driven = DrivenConnection(tasks, handler)
        driven.send(GET)
        await settle()
        driven.shut_down()
        driven.lose()
        assert told == [True]
        gone.set()

    run(play)


def test_a_stream_that_is_begun_for_a_client_that_has_left_does_not_outlast_its_handler() -> None:
    async def play(loop: CommandedLoop, tasks: asyncio.TaskGroup) -> None:
        gone = asyncio.Event()

        async def handler(request: http.Request) -> http.Answered:
            await gone.wait()
            request.start_stream(200, {}).write(b"one")
            return http.Streamed()

        driven = DrivenConnection(tasks, handler)
        driven.send(GET)
        await settle()
        driven.shut_down()
        gone.set()
        await settle()
        assert driven.transport.has_ended == "closed"
        driven.lose()

    run(play)
