"""One connection: what is read of it, what is refused, and how it ends."""

from __future__ import annotations

import tracemalloc
import weakref
from contextlib import suppress
from contextvars import ContextVar

import anyio
import pytest
from msgspec.structs import replace

from mcproxy.http import server as http
from mcproxy.http.server.connection import LAST_BYTES, ServerConnection
from mcproxy.http.server.reader import MAX_HEAD, MAX_WAITING
from tests.http.server.serving import BOUNDS, PATIENCE, echo, post, serving, visiting
from tests.http.timers import COMMANDED, commanded_loop
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

NAME: ContextVar[str] = ContextVar("NAME", default="nobody")
GET = b"GET /x HTTP/1.1\r\nHost: here\r\n\r\n"


# What is read


async def test_requests_of_one_connection_are_answered_one_after_the_other() -> None:
    async with visiting() as visitor:
        assert (await visitor.ask(post(b"one"))).body == b"POST /x one"
        assert (await visitor.ask(post(b"two"))).body == b"POST /x two"


async def test_requests_that_do_not_wait_for_answers_are_answered_in_order() -> None:
    async with visiting() as visitor:
        await visitor.say(post(b"one") + post(b"two") + GET)
        assert [(await visitor.answer()).body for _ in range(3)] == [b"POST /x one", b"POST /x two", b"GET /x "]


async def test_a_request_may_come_in_any_pieces() -> None:
    request = post(b"body", b"Accept: */*")
    async with visiting() as visitor:
        for cut in range(1, len(request)):
            await visitor.say(request[:cut])
            await anyio.lowlevel.checkpoint()
            assert (await visitor.ask(request[cut:])).body == b"POST /x body"


@pytest.mark.parametrize("size", [200_000, 262_144, 262_145, 300_000, 400_000, 600_000])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_kept_connection_goes_on_after_bodies_of_any_size(size: int, chunked: bool) -> None:
    body = b"x" * size
    head = b"POST /x HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    request = head + b"%x\r\n%b\r\n0\r\n\r\n" % (size, body) if chunked else post(body)
    async with visiting(bounds=replace(BOUNDS, max_body=1_000_000)) as visitor:
        for _ in range(5):
            assert len((await visitor.ask(request)).body) == len("POST /x ") + size
        assert (await visitor.ask(GET)).body == b"GET /x "
        await visitor.say(request * 3 + GET)
        answers = [(await visitor.answer()).body for _ in range(4)]
        assert [len(answer) for answer in answers] == 3 * [len("POST /x ") + size] + [len("GET /x ")]


async def test_a_body_in_chunks_is_put_together_and_its_trailers_are_no_headers() -> None:
    seen: list[str] = []

    async def handler(request: http.Request) -> http.Response:
        answer = await echo(request)
        seen.append(request.fields.get("authorization", ""))
        return answer

    chunked = b"POST /x HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with visiting(handler) as visitor:
        answer = await visitor.ask(chunked + b"2\r\nbo\r\n2\r\ndy\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
        assert answer.body == b"POST /x body"
        assert (await visitor.ask(GET)).body == b"GET /x "
    assert seen == ["", ""]


async def test_a_client_that_waits_for_an_invitation_gets_one_once_its_body_is_read() -> None:
    request = post(b"body", b"Expect: 100-continue")
    async with visiting() as visitor:
        await visitor.say(request[:-4])
        assert (await visitor.answer()).status == 100
        assert (await visitor.ask(b"body")).body == b"POST /x body"


@pytest.mark.parametrize("body", [b"", b"body"])
async def test_an_offer_of_another_protocol_is_ignored(body: bytes) -> None:
    async with visiting() as visitor:
        await visitor.say(post(body, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c") + GET)
        assert [(await visitor.answer()).body for _ in range(2)] == [b"POST /x " + body, b"GET /x "]


async def test_a_whole_url_is_read_as_the_path_in_it() -> None:
    async with visiting() as visitor:
        answer = await visitor.ask(b"GET http://here/a?b=c HTTP/1.1\r\nHost: here\r\n\r\n")
        assert answer.body == b"GET /a?b=c "


async def test_a_head_request_is_answered_without_a_body() -> None:
    async with visiting() as visitor:
        answer = await visitor.ask(b"HEAD /x HTTP/1.1\r\nHost: here\r\n\r\n", body=False)
        assert answer.fields["content-length"] == str(len("HEAD /x "))
        assert (await visitor.ask(GET)).body == b"GET /x "


# What is refused


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, b"\x16\x03\x01\x02\x00\x01"),
        (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (400, b"GET /x HTTP/1.1\r\nHost: here\r\nHost: there\r\n\r\n"),
        (400, post(b"body", b"Transfer-Encoding: chunked")),
        (400, post(b"body", b"Content-Length: 5")),
        (400, b"POST /x HTTP/1.1\r\nHost: here\r\nContent-Length : 4\r\n\r\nbody"),
        (400, b"POST /x HTTP/1.1\r\nHost: here\r\nContent-Length: 4x\r\n\r\nbody"),
        (400, b"GET /x HTTP/1.1\r\nHost: here\r\nX: a\x00b\r\n\r\n"),
        (400, b"POST /x HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        (405, b"CONNECT there:443 HTTP/1.1\r\nHost: there:443\r\n\r\n"),
        (431, b"GET /x HTTP/1.1\r\nHost: here\r\nX: " + b"x" * MAX_HEAD + b"\r\n\r\n"),
        (431, b"GET /x HTTP/1.1\r\nHost: here\r\nX: " + b"x" * MAX_HEAD),
    ],
)
async def test_what_is_no_request_is_refused_and_nothing_more_is_heard(status: int, said: bytes) -> None:
    async with visiting() as visitor:
        answer = await visitor.ask(said)
        assert answer.status == status
        assert answer.fields["connection"] == "close"
        await visitor.say(GET)
        assert await visitor.rest() == b""


async def test_what_came_before_it_is_answered_first() -> None:
    async with visiting() as visitor:
        await visitor.say(GET + b"\x00\x00\x00\r\n\r\n")
        assert (await visitor.answer()).body == b"GET /x "


@pytest.mark.parametrize("framing", [b"Content-Length: 100001\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_r8_a_body_over_the_limit_is_no_more_than_begun(framing: bytes) -> None:
    async with visiting() as visitor:
        await visitor.say(b"POST /x HTTP/1.1\r\nHost: here\r\n" + framing + b"\r\n")
        if framing.startswith(b"Transfer"):
            await visitor.say(b"186a1\r\n" + b"x" * 100_001)
        answer = await visitor.answer()
        assert (answer.status, answer.fields["connection"]) == (413, "close")


async def test_r8_a_connection_on_which_too_many_requests_wait_is_ended() -> None:
    async with visiting() as visitor:
        await visitor.say(GET * (MAX_WAITING + 5))
        answers = await visitor.rest()
        assert 0 < answers.count(b"GET /x ") <= MAX_WAITING + 1


async def test_r8_an_unread_body_is_not_taken_without_end() -> None:
    much = 50 * 1024 * 1024
    go_on = anyio.Event()
    sent = 0

    async def slow(request: http.Request) -> http.Response:
        await go_on.wait()
        return http.Response(200)

    async with visiting(slow, replace(BOUNDS, max_body=2 * much)) as visitor:
        await visitor.say(post(b"", length=much))
        with anyio.move_on_after(0.5):
            while sent < much:
                await visitor.say(b"x" * 65536)
                sent += 65536
        go_on.set()
        assert (await visitor.answer()).fields["connection"] == "close"
    assert sent < much / 2


# How it ends


async def test_a_client_that_wants_to_end_is_let_go() -> None:
    async with visiting() as visitor:
        answer = await visitor.ask(post(b"body", b"Connection: close"))
        assert (answer.body, answer.fields["connection"]) == (b"POST /x body", "close")
        assert await visitor.rest() == b""


async def test_a_client_of_http_1_0_is_let_go_after_its_answer() -> None:
    async with visiting() as visitor:
        assert (await visitor.ask(b"GET /x HTTP/1.0\r\n\r\n")).body == b"GET /x "
        assert await visitor.rest() == b""


async def answer_at_once(request: http.Request) -> http.Response:
    return http.Response(401)


async def test_an_answer_before_the_end_of_a_short_body_costs_no_connection() -> None:
    async with visiting(answer_at_once) as visitor:
        assert (await visitor.ask(post(b"bo", length=4))).status == 401
        await visitor.say(b"dy")
        assert (await visitor.ask(post(b"body"))).status == 401


async def test_an_answer_before_the_end_of_a_long_body_arrives_all_the_same() -> None:
    async with visiting(answer_at_once) as visitor:
        answer = await visitor.ask(post(b"x" * 10, length=LAST_BYTES * 10))
        assert (answer.status, answer.fields["connection"]) == (401, "close")
        with anyio.move_on_after(GUARD):
            await visitor.say(b"x" * LAST_BYTES * 8)
        assert await visitor.rest() == b""


async def test_a_handler_hears_that_its_client_has_left_and_runs_on() -> None:
    arrived, left, ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def handler(request: http.Request) -> http.Response:
        request.on_disconnect = left.set
        arrived.set()
        await left.wait()
        assert request.is_disconnected
        ended.set()
        return http.Response(200)

    async with serving(handler) as running:
        async with running.visited() as visitor:
            await visitor.say(GET)
            await arrived.wait()
        await ended.wait()


async def test_r8_a_body_that_does_not_come_is_not_waited_for_without_end() -> None:
    async def handler(request: http.Request) -> http.Response:
        with pytest.raises(http.BodyTimeout):
            await request.body(0.01)
        return http.Response(408)

    async with visiting(handler) as visitor:
        assert (await visitor.ask(post(b"bo", length=4))).status == 408
        assert (await visitor.ask(b"dy" + post(b"bo", length=4))).status == 408


async def test_a_body_that_its_client_leaves_behind_is_cut() -> None:
    arrived = anyio.Event()
    cut = anyio.Event()

    async def handler(request: http.Request) -> http.Response:
        arrived.set()
        try:
            await request.body(PATIENCE)
        except http.BodyIncomplete:
            cut.set()
        return http.Response(400)

    async with serving(handler) as running:
        async with running.visited() as visitor:
            await visitor.say(post(b"bo", length=4))
            await arrived.wait()
        await cut.wait()


async def test_a_handler_that_crashes_costs_its_request_alone() -> None:
    async def crash(request: http.Request) -> http.Response:
        if request.target == "/crash":
            raise RuntimeError("boom")
        return await echo(request)

    async with visiting(crash) as visitor:
        answer = await visitor.ask(post(b"", target=b"/crash"))
        assert answer.status == 500
        assert b"boom" not in answer.body
        assert (await visitor.ask(GET)).status == 200


async def test_nothing_of_a_request_outlasts_its_answer() -> None:
    class Added(dict[str, str]):
        """Can be referred to weakly."""

    seen: list[weakref.ref[Added]] = []

    async def handler(request: http.Request) -> http.Response:
        request.response_fields = added = Added()
        seen.append(weakref.ref(added))
        return http.Response(200)

    async with visiting(handler) as visitor:
        await visitor.ask(post(b"body"))
        await anyio.wait_all_tasks_blocked()
        assert [there() for there in seen] == [None]


async def test_what_is_being_handled_ends_with_the_server() -> None:
    arrived, ended = anyio.Event(), anyio.Event()

    async def handler(request: http.Request) -> http.Response:
        arrived.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return http.Response(200)

    async with visiting(handler) as visitor:
        await visitor.say(GET)
        await arrived.wait()
    assert ended.is_set()


async def test_r8_an_idle_connection_is_ended_and_one_that_is_served_is_not() -> None:
    arrived, release = anyio.Event(), anyio.Event()

    async def slow(request: http.Request) -> http.Response:
        arrived.set()
        await release.wait()
        return http.Response(200)

    async with serving(slow) as running, running.visited() as busy:
        await busy.say(GET)
        await arrived.wait()
        running.bounds = replace(BOUNDS, idle=0.05)
        async with running.visited() as idle:
            assert await idle.rest() == b""
        release.set()
        assert (await busy.answer()).status == 200


# Streams


def begun_at_once(request: http.Request) -> http.Chunks:
    chunks = request.start_stream(200, {})
    chunks.write(b"")
    return chunks


async def test_the_head_the_last_piece_and_the_end_of_a_stream_go_together() -> None:
    async def stream(request: http.Request) -> http.Answered:
        request.start_stream(200, {}).end(b"all")
        return http.Streamed()

    async with visiting(stream) as visitor:
        answer = await visitor.ask(GET)
        assert answer.fields["transfer-encoding"] == "chunked"
        assert [await visitor.chunk(), await visitor.chunk()] == [b"all", b""]
        assert (await visitor.ask(GET)).status == 200


async def test_a_stream_is_sent_in_chunks_as_it_is_written() -> None:
    go_on = anyio.Event()

    async def stream(request: http.Request) -> http.Answered:
        chunks = request.start_stream(200, {"Content-Type": "text/plain"})
        chunks.write(b"one")
        await go_on.wait()
        chunks.write(b"two")
        chunks.end()
        return http.Streamed()

    async with visiting(stream) as visitor:
        answer = await visitor.ask(GET)
        assert answer.fields["transfer-encoding"] == "chunked"
        assert await visitor.chunk() == b"one"
        go_on.set()
        assert [await visitor.chunk(), await visitor.chunk()] == [b"two", b""]
        assert (await visitor.ask(GET)).status == 200


async def test_a_stream_goes_on_without_its_handler_and_the_next_request_waits_for_its_end() -> None:
    begun: list[http.Chunks] = []

    async def stream(request: http.Request) -> http.Answered:
        if request.target == "/next":
            return http.Response(200, b"next")
        begun.append(begun_at_once(request))
        return http.Streamed()

    async with serving(stream) as running, running.visited() as visitor:
        await visitor.ask(GET)
        await visitor.say(b"GET /next HTTP/1.1\r\nHost: here\r\n\r\n")
        running.server.drain()
        (chunks,) = begun
        chunks.write(b"one")
        assert await visitor.chunk() == b"one"
        chunks.end()
        assert await visitor.chunk() == b""
        assert (await visitor.answer()).body == b"next"
        assert await visitor.rest() == b""


async def test_a_connection_whose_stream_went_on_without_its_handler_serves_again() -> None:
    begun: list[http.Chunks] = []

    async def stream(request: http.Request) -> http.Answered:
        begun.append(begun_at_once(request))
        return http.Streamed()

    async with visiting(stream) as visitor:
        for number in range(2):
            assert (await visitor.ask(GET)).status == 200
            begun[number].end()
            assert await visitor.chunk() == b""


async def test_what_waited_for_the_end_of_a_stream_is_not_served_as_the_caller_that_ended_it() -> None:
    begun: list[http.Chunks] = []
    names: list[str] = []

    async def stream(request: http.Request) -> http.Answered:
        names.append(NAME.get())
        begun.append(begun_at_once(request))
        return http.Streamed()

    async with serving(stream) as running, running.visited() as visitor:
        await visitor.ask(GET)
        await visitor.say(GET)
        (connection,) = running.server._connections
        assert isinstance(connection, ServerConnection)
        while not connection._reader.requests:
            await anyio.lowlevel.checkpoint()
        token = NAME.set("another")
        begun[0].end()
        NAME.reset(token)
        assert await visitor.chunk() == b""
        assert (await visitor.answer(body=False)).status == 200
    assert names == ["nobody", "nobody"]


async def test_a_request_after_such_a_stream_has_to_name_its_host_too() -> None:
    begun: list[http.Chunks] = []

    async def stream(request: http.Request) -> http.Answered:
        begun.append(begun_at_once(request))
        return http.Streamed()

    async with visiting(stream) as visitor:
        await visitor.ask(GET)
        begun[0].end()
        assert await visitor.chunk() == b""
        assert (await visitor.ask(b"GET /x HTTP/1.1\r\n\r\n")).status == 400


async def test_a_stream_without_a_handler_says_that_its_client_has_left() -> None:
    gone = anyio.Event()

    async def stream(request: http.Request) -> http.Answered:
        begun_at_once(request).on_disconnect = gone.set
        return http.Streamed()

    async with serving(stream) as running:
        async with running.visited() as visitor:
            await visitor.ask(GET)
        await gone.wait()


async def test_a_stream_to_a_client_of_http_1_0_ends_with_its_connection() -> None:
    async def stream(request: http.Request) -> http.Answered:
        chunks = request.start_stream(200, {})
        chunks.write(b"one")
        chunks.end()
        return http.Streamed()

    async with visiting(stream) as visitor:
        await visitor.ask(b"GET /x HTTP/1.0\r\n\r\n")
        assert await visitor.rest() == b"one"


async def test_a_stream_whose_handler_crashes_is_not_taken_for_whole() -> None:
    told = anyio.Event()

    async def crash(request: http.Request) -> http.Answered:
        chunks = request.start_stream(200, {})
        chunks.on_disconnect = told.set
        chunks.write(b"one")
        raise RuntimeError("boom")

    async with visiting(crash) as visitor:
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            await visitor.ask(GET)
            assert await visitor.chunk() == b"one"
            assert await visitor.chunk() is None, "it ends without an end"
    assert told.is_set(), "and whoever wrote it knows"


async def test_r23_a_stream_says_when_its_client_does_not_keep_up_and_when_it_does_again() -> None:
    full, ready = anyio.Event(), anyio.Event()

    async def flood(request: http.Request) -> http.Answered:
        chunks = request.start_stream(200, {})
        chunks.ready = ready.set
        while not chunks.full:
            chunks.write(b"x" * 65536)
        full.set()
        await ready.wait()
        chunks.end()
        return http.Streamed()

    async with visiting(flood) as visitor:
        await visitor.say(GET)
        await full.wait()
        assert not ready.is_set()
        await visitor.answer()
        while await visitor.chunk():
            pass
    assert ready.is_set()


async def test_r8_a_client_that_takes_nothing_is_hung_up_on() -> None:
    gone = anyio.Event()

    async def flood(request: http.Request) -> http.Answered:
        chunks = request.start_stream(200, {})
        chunks.on_disconnect = gone.set
        while not chunks.full:
            chunks.write(b"x" * 65536)
        await gone.wait()
        return http.Streamed()

    async with visiting(flood, replace(BOUNDS, write_timeout=0.05)) as visitor:
        await visitor.say(GET)
        await gone.wait()


# Headers of answers


async def test_a_value_cannot_become_another_header() -> None:
    async def handler(request: http.Request) -> http.Response:
        return http.Response(200, fields={"X-Said": "a\r\nSet-Cookie: b\nc\x00"})

    async with visiting(handler) as visitor:
        answer = await visitor.ask(GET)
        assert answer.fields["x-said"] == "a  Set-Cookie: b c "
        assert "set-cookie" not in answer.fields


async def test_answers_are_dated_and_an_empty_one_says_so() -> None:
    async def handler(request: http.Request) -> http.Response:
        request.response_fields = {"X-Added": "yes"}
        return http.Response(204 if request.target == "/none" else 202)

    async with visiting(handler) as visitor:
        answer = await visitor.ask(GET)
        assert (answer.status, answer.fields["content-length"], answer.fields["x-added"]) == (202, "0", "yes")
        assert answer.fields["date"].endswith(" GMT")
        empty = await visitor.ask(b"GET /none HTTP/1.1\r\nHost: here\r\n\r\n")
        assert (empty.status, "content-length" in empty.fields) == (204, False)


# The server


async def test_r9_draining_ends_what_is_idle_and_lets_the_rest_be_answered() -> None:
    arrived, release = anyio.Event(), anyio.Event()

    async def slow(request: http.Request) -> http.Response:
        arrived.set()
        await release.wait()
        return http.Response(200)

    async with serving(slow) as running, running.visited() as busy, running.visited() as idle:
        await busy.say(GET)
        await arrived.wait()
        running.server.drain()
        assert await idle.rest() == b""
        release.set()
        answer = await busy.answer()
        assert (answer.status, answer.fields["connection"]) == (200, "close")
        assert await busy.rest() == b""
        with pytest.raises(OSError, match="onnect"):
            await anyio.connect_tcp("127.0.0.1", running.port)


async def test_r54_one_connection_too_many_is_told_so_and_the_others_are_served() -> None:
    async with serving(bounds=replace(BOUNDS, connections=1)) as running, running.visited() as first:
        assert (await first.ask(GET)).status == 200
        async with running.visited() as second:
            answer = await second.answer()
            assert (answer.status, answer.fields["connection"]) == (503, "close")
        assert (await first.ask(GET)).status == 200


def test_r8_a_body_in_small_pieces_takes_no_more_room_than_it_has() -> None:
    class Nowhere:
        max_body = 1 << 30

    size = 400_000
    request = http.Request(Nowhere(), "POST", "/x", http.Headers(), None)  # type: ignore[arg-type]  # it has no client
    tracemalloc.start()
    for _ in range(size // 4):
        request.feed(bytes(4))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    request.finish()
    assert request.received == bytes(size)
    assert held < 2 * size


@COMMANDED
async def test_r8_looking_for_idle_connections_gives_one_that_ends_no_more_time() -> None:
    async def answer(request: http.Request) -> http.Response:
        return http.Response(200, bytes(8_000_000))

    bounds = replace(BOUNDS, idle=4, write_timeout=20)
    async with serving(answer, bounds) as running, running.visited() as visitor:
        await visitor.say(b"GET /x HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        while not running.server.connections:
            await anyio.lowlevel.checkpoint()
        for _ in range(30):
            await commanded_loop().advance(1)
        assert not running.server.connections
