"""No head is taken for a remembered one that it is not: what is recognised is what llhttp would have read."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref

import anyio
import pytest
from msgspec.structs import replace

from mcproxy.http import server as http
from mcproxy.http.head_cache import (
    GROWTH,
    LONGEST_KNOWN,
    MOST_BYTES,
    MOST_KNOWN,
    MOST_LINES,
    HeadCache,
    KnownHead,
    plain_head,
)
from mcproxy.http.headers import Headers
from mcproxy.http.server.connection import ServerConnection
from mcproxy.http.server.reader import RequestReader
from tests.depth import examples
from tests.fuzz.http import mutated
from tests.http.server.driven import DrivenConnection
from tests.http.server.serving import BOUNDS, echo, post, serving, visiting
from tests.http.timers import COMMANDED

BEFORE = b"POST /x HTTP/1.1\r\nHost: here\r\nContent-Length: "
BEHIND = b"\r\nAccept: */*\r\n\r\n"
GET = b"GET /x HTTP/1.1\r\nHost: here\r\n\r\n"


def remembered(head: bytes, lines: int = 3, gaps: frozenset[str] = frozenset()) -> KnownHead[None] | None:
    found = plain_head(head + b"body", lines)
    if found is None:
        return None
    said = [line.decode("latin-1").partition(": ") for line in head.split(b"\r\n")[1:-2]]
    fields = Headers.of((name, value) for name, _, value in said if name != "Content-Length")
    return HeadCache[None]().add(None, fields, found, gaps)


def read(known: KnownHead[None] | None, data: bytes) -> tuple[int, bytes] | None:
    """The length of the body, and what there is of it."""
    assert known is not None
    return known.read(data)


@pytest.mark.parametrize("length", [0, 4, 12345])
def test_a_head_is_known_whatever_the_length(length: int) -> None:
    known = remembered(BEFORE + b"4" + BEHIND)
    for _ in range(2):
        assert read(known, BEFORE + b"%d" % length + BEHIND + bytes(length)) == (length, bytes(length))


def test_what_is_behind_a_head_is_its_body_as_far_as_it_came() -> None:
    known = remembered(BEFORE + b"4" + BEHIND)
    for body in (b"bo", b"bodyGET", b"", b"\r\n\r\n"):
        assert read(known, BEFORE + b"4" + BEHIND + body) == (4, body)


@pytest.mark.parametrize("digits", [b"", b"+4", b"-4", b" 4", b"4 ", b"4x", b"4,4", b"4\r\nX: 4", b"9" * 20, b"\xb2"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_length_is_of_digits_alone(digits: bytes, is_first: bool) -> None:
    known = remembered(BEFORE + b"4" + BEHIND)
    if not is_first:
        assert read(known, BEFORE + b"4" + BEHIND) is not None
    assert read(known, BEFORE + digits + BEHIND) is None


def test_a_head_without_a_length_has_no_body() -> None:
    known = remembered(GET, 1)
    assert read(known, GET + b"GET") == (0, b"GET")
    assert read(known, GET[:-1]) is None


VARIED = b"POST /x HTTP/1.1\r\nA: %b\r\nHost: here\r\nContent-Length: %d\r\nB: %b\r\nC: c\r\n\r\n"
AB = frozenset({"a", "b"})


def test_the_fields_of_a_head_that_varies_are_those_that_came() -> None:
    known = remembered(VARIED % (b"a", 4, b"b"), 5, AB)
    assert known is not None
    seen = []
    for a, b, length in ((b"1", b"2", 3), (b"1", b"2", 5), (b"a", b"b", 3), (b"x y", b"~", 0), (b"a", b"2", 1)):
        assert read(known, VARIED % (a, length, b) + b"body") == (length, b"body")
        assert known.fields == {"a": a.decode(), "b": b.decode(), "host": "here", "c": "c"}
        seen.append(known.fields)
    assert seen[0] == {"a": "1", "b": "2", "host": "here", "c": "c"}, "those of a request are its own"


@pytest.mark.parametrize(
    "value", [b"", b" a", b"a ", b"\ta", b"a\tb", b"a\x00", b"\x7f", b"\xc3\xa4", b"a\r\nD: d", b"a\nD: d", b"a\rb"]
)
def test_a_value_that_might_be_read_in_two_ways_is_left_to_the_parser(value: bytes) -> None:
    known = remembered(VARIED % (b"a", 4, b"b"), 5, AB)
    assert read(known, VARIED % (value, 4, b"b")) is None
    assert read(known, VARIED % (b"a", 4, value)) is None


@pytest.mark.parametrize(
    ("found", "other"),
    [(b"Host: here", b"Host: there"), (b"C: c", b"C: d"), (b"C: c", b"C: c\r\nA: 2"), (b"/x", b"/y")],
)
def test_what_does_not_vary_must_be_the_same(found: bytes, other: bytes) -> None:
    said = VARIED % (b"a", 4, b"b")
    assert read(remembered(said, 5, AB), said.replace(found, other)) is None


def test_nothing_varies_in_a_head_with_a_name_that_came_twice() -> None:
    said = VARIED.replace(b"C: c", b"A: 2")
    known = remembered(said % (b"a", 4, b"b"), 5, AB)
    assert read(known, said % (b"a", 5, b"b")) == (5, b"")
    assert read(known, said % (b"a", 4, b"other")) is None


def test_r54_values_that_vary_may_be_a_little_longer_than_they_were() -> None:
    known = remembered(VARIED % (b"a", 4, b"b"), 5, AB)
    assert read(known, VARIED % (b"a" * GROWTH, 4, b"b")) is not None
    assert read(known, VARIED % (b"a" * (GROWTH + 2), 4, b"b")) is None


@pytest.mark.parametrize(
    ("head", "lines"),
    [
        (BEFORE + b"4" + BEHIND[:-2], 3),
        (BEFORE + b"4x" + BEHIND, 3),
        (BEFORE.replace(b": ", b":") + b"4" + BEHIND, 3),
        (BEFORE + b"4" + BEHIND, 2),
        (BEFORE + b"4\r\nX: a\nAccept: */*\r\n\r\n", 3),
        (BEFORE + b"4\r\nX: a\rAccept: */*\r\n\r\n", 3),
        (BEFORE + b"4\r\nAccept: */*\n\n" + BEHIND, 3),
        (b"\r\n\r\n" + BEFORE + b"4" + BEHIND, 3),
        (BEFORE + b"4\r\nX: " + b"x" * LONGEST_KNOWN + b"\r\n\r\n", 3),
        (BEFORE + b"4\r\n" + b"X: \r\n" * MOST_LINES + b"\r\n", BEFORE.count(b"\n") + MOST_LINES),
    ],
)
def test_what_is_not_plainly_a_head_of_the_lines_that_were_read_is_not_remembered(head: bytes, lines: int) -> None:
    assert remembered(head, lines) is None


# Beside llhttp


GAPS = frozenset({"accept", "authorization", "x-one"})
LINES = (b"Accept: a/b", b"Authorization: Bearer x", b"X-One: 1", b"X-Two: a b", b"Content-Type: application/json")


class Elsewhere:
    """A transport that a reader needs nothing of."""

    max_body = 1000


def what_is_read(reader: RequestReader, data: bytes) -> object:
    """All that a reader makes of bytes."""
    reader.receive(data)
    found = [
        (
            each.method,
            each.target,
            sorted(each.fields.items()),
            each.length,
            each.missing,
            each.received,
            each.too_large,
        )
        for each in reader.requests
    ]
    reader.requests.clear()
    return found, reader.state, reader.refusal


def reader_that_knows(sample: bytes) -> RequestReader:
    reader = RequestReader(Elsewhere())  # type: ignore[arg-type]  # it has all that is used of one
    reader.receive(sample)
    reader.remember(reader.requests.pop(), None, None, GAPS)
    return reader


@pytest.mark.parametrize("seed", range(examples(150)))
def test_what_is_recognised_is_what_llhttp_reads(seed: int) -> None:
    chance, recognised = random.Random(seed), 0
    sample = post(b"body\r\n\r\nmore", *chance.sample(LINES, k=chance.randint(0, len(LINES))))
    others = [post(b"x" * length, *LINES[:2], b"X-One: 2") for length in (0, 3, 2000)]
    for _ in range(40):
        reader, anew = reader_that_knows(sample), RequestReader(Elsewhere())  # type: ignore[arg-type]  # as above
        data = mutated(chance, [sample, *others])
        recognised += any(known.read(data) for known in reader._heads.heads)
        assert what_is_read(reader, data) == what_is_read(anew, data), data
    assert recognised


# On a connection


@pytest.mark.anyio
async def test_white_space_around_a_value_is_no_part_of_it() -> None:
    heard: list[http.Headers] = []

    async def handler(request: http.Request) -> http.Response:
        heard.append(request.fields)
        return await echo(request)

    async with visiting(handler) as visitor:
        for more in (b"", b"X-Two: d \r\n"):
            await visitor.ask(b"GET /x HTTP/1.1\r\nHost: \t here \t\r\nX-One:a b\t \r\nX-Two: c \r\n" + more + b"\r\n")
    assert [(fields["host"], fields["x-one"]) for fields in heard] == [("here", "a b")] * 2
    assert [fields.joined("x-two") for fields in heard] == ["c", "c, d"]


@pytest.mark.anyio
async def test_requests_with_the_same_head_are_told_apart_by_their_bodies_and_bring_the_same_fields() -> None:
    heard: list[http.Request] = []

    async def handler(request: http.Request) -> http.Response:
        heard.append(request)
        return await echo(request)

    async with visiting(handler) as visitor:
        for body in (b"one", b"three", b"", b"x" * 1000):
            assert (await visitor.ask(post(body))).body == b"POST /x " + body
    assert all(request.fields is heard[0].fields for request in heard)


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(20))
async def test_what_comes_in_any_pieces_is_read_the_same_whether_its_head_is_known_or_not(seed: int) -> None:
    chance = random.Random(seed)
    bodies = [bytes(chance.choices(b"ab\r\n", k=chance.choice((0, 3, 40, 2000)))) for _ in range(12)]
    lines = [chance.choice(((), (b"Accept: a/b",), (b"X: y", b"Expect: nothing"))) for _ in bodies]
    said = b"".join(post(body, *more) for body, more in zip(bodies, lines, strict=True))
    cuts = sorted(chance.choices(range(len(said)), k=chance.choice((3, 20, 60))))
    async with visiting() as visitor:
        assert (await visitor.ask(post(b"first"))).body == b"POST /x first"
        for start, end in zip([0, *cuts], [*cuts, len(said)], strict=True):
            await visitor.say(said[start:end])
        assert [(await visitor.answer()).body for _ in bodies] == [b"POST /x " + body for body in bodies]


async def varied(request: http.Request) -> http.Response:
    """Accepts requests whatever two of their fields say, and answers with all that they say."""
    request.remember("accepted", None, frozenset({"accept", "authorization"}))
    try:
        body = await request.body(1000)
    except (http.BodyTooLarge, http.BodyIncomplete):
        return http.Response(400)
    return http.Response(200, repr((request.method, request.target, sorted(request.fields.items()), body)).encode())


async def answered(*said: bytes, handler: http.RequestHandler = echo) -> bytes:
    """What is answered to the last of it."""
    async with asyncio.TaskGroup() as tasks:
        driven = DrivenConnection(tasks, handler)
        for data in said:
            before = len(driven.said)
            driven.send(data)
            await driven.settle()
        answer = driven.said[before:]
        driven.lose()
        return answer


@pytest.mark.anyio
@COMMANDED
@pytest.mark.parametrize("size", [200_000, 256 * 1024, 256 * 1024 + 1, 300_000, 400_000, 600_000])
@pytest.mark.parametrize("pipelined", [1, 3])
@pytest.mark.parametrize("at_once", [1, 2, 9])
async def test_a_connection_never_stays_paused_with_no_handler_left_to_resume_it(
    size: int, pipelined: int, at_once: int
) -> None:
    async with asyncio.TaskGroup() as tasks:
        driven = DrivenConnection(tasks, bounds=replace(BOUNDS, max_body=1_000_000))
        for turn in range(4):
            said = post(b"x" * size) * pipelined
            pieces = [said[start : start + 64 * 1024] for start in range(0, len(said), 64 * 1024)]
            for start in range(0, len(pieces), at_once):
                driven.send(*pieces[start : start + at_once])
                await driven.settle()
                assert driven.transport.unread == []
            assert driven.said.count(b"HTTP/1.1 200") == (turn + 1) * pipelined
        driven.lose()


@pytest.mark.anyio
@COMMANDED
@pytest.mark.parametrize("seed", range(50))
async def test_what_is_nearly_a_known_head_is_taken_for_what_its_parser_takes_it_for(seed: int) -> None:
    chance = random.Random(seed)
    sample = post(b"body\r\n\r\nmore", b"Accept: */*", b"Authorization: Bearer x")
    for _ in range(40):
        data = mutated(chance, [sample])
        assert await answered(sample, data) == await answered(data), data
        assert await answered(sample, data, handler=varied) == await answered(data, handler=varied), data


@pytest.mark.anyio
async def test_values_that_vary_share_what_was_remembered_while_the_same_fields_vary() -> None:
    recalled: list[tuple[str | None, str]] = []
    varying = frozenset({"a"})

    async def handler(request: http.Request) -> http.Response:
        recalled.append((request.recall(str, None), request.fields["a"]))
        if recalled[-1][0] is None or request.target == "/again":
            request.remember(f"of {request.fields['a']}", None, varying)
        return http.Response(200)

    async with visiting(handler) as visitor:
        for a in (b"1", b"2", b"3"):
            await visitor.ask(post(b"body", b"A: " + a))
        assert recalled == [(None, "1"), ("of 1", "2"), ("of 1", "3")]
        recalled.clear()
        await visitor.ask(post(b"body", b"A: 1", target=b"/again"))
        varying = frozenset()
        for a in (b"2", b"2", b"3", b"3", b"2"):
            await visitor.ask(post(b"body", b"A: " + a, target=b"/again"))
        # The second is remembered for other fields than the first: nothing is recalled until it came once more.
        assert recalled == [(None, "1"), ("of 1", "2"), (None, "2"), (None, "3"), ("of 3", "3"), ("of 2", "2")]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "said",
    [
        post(b"body").replace(b": 4", b": 4x"),
        post(b"body").replace(b": 4", b": +4"),
        post(b"body").replace(b": 4", b": 4\r\nContent-Length: 5"),
        post(b"body", b"Transfer-Encoding: chunked"),
        post(b"body") + b"\x00\r\n\r\n",
    ],
)
async def test_behind_a_known_head_as_well_what_is_no_request_is_refused(said: bytes) -> None:
    async with visiting() as visitor:
        assert (await visitor.ask(post(b"body"))).status == 200
        await visitor.say(said + post(b"more"))
        assert b"more" not in await visitor.rest()


@pytest.mark.anyio
@pytest.mark.parametrize("lines", [b"X: y\r\n" * (MOST_LINES + 1), b"X: " + b"y" * LONGEST_KNOWN + b"\r\n"])
async def test_r54_what_a_large_head_says_is_not_kept(lines: bytes) -> None:
    heard: list[http.Request] = []

    async def handler(request: http.Request) -> http.Response:
        heard.append(request)
        return await echo(request)

    async with visiting(handler) as visitor:
        for _ in range(2):
            await visitor.ask(b"GET /x HTTP/1.1\r\nHost: here\r\n" + lines + b"\r\n")
    first, second = heard
    assert second.fields is not first.fields


@pytest.mark.anyio
async def test_a_request_that_says_that_it_is_the_last_is_the_last_each_time() -> None:
    last = post(b"body", b"Connection: close")
    async with visiting() as visitor:
        await visitor.say(last)
        assert (await visitor.answer()).fields["connection"] == "close"
        assert await visitor.rest() == b""


@pytest.mark.anyio
async def test_r8_a_body_over_the_limit_is_refused_behind_a_known_head_too() -> None:
    async with visiting() as visitor:
        assert (await visitor.ask(post(b"body"))).status == 200
        answer = await visitor.ask(post(b"", length=BOUNDS.max_body + 1))
        assert (answer.status, answer.fields["connection"]) == (413, "close")


@pytest.mark.anyio
async def test_r54_no_more_than_some_heads_are_remembered_and_none_for_long() -> None:
    heard: list[http.Request] = []

    async def handler(request: http.Request) -> http.Response:
        heard.append(request)
        return await echo(request)

    async with serving(handler) as running, running.visited() as visitor:
        for number in (*range(MOST_KNOWN + 2), 0, MOST_KNOWN):
            await visitor.ask(post(b"body", b"X: %d" % number))
        kept, over = heard[-2:]
        assert kept.fields is heard[0].fields
        assert over.fields is not heard[MOST_KNOWN].fields
        running.server.expire(0)
        await visitor.ask(post(b"body", b"X: 0"))
        assert heard[-1].fields is not kept.fields
        assert heard[-1].fields == kept.fields


@pytest.mark.anyio
@pytest.mark.parametrize("head", [post(b""), GET], ids=["with a length", "without"])
async def test_r54_nothing_is_remembered_of_a_head_before_its_request_is_accepted(head: bytes) -> None:
    heard: list[http.Request] = []

    async def handler(request: http.Request) -> http.Response:
        heard.append(request)
        if len(heard) == 3:
            request.remember("accepted", None)
        return http.Response(401)

    async with visiting(handler) as visitor:
        for _ in range(5):
            await visitor.ask(head)
    refused, refused_again, accepted, *later = heard
    assert refused_again.fields is not refused.fields
    assert accepted.fields is not refused_again.fields
    assert all(request.fields is accepted.fields for request in later)


@pytest.mark.anyio
async def test_r54_the_heads_that_a_connection_remembers_are_bounded_in_bytes() -> None:
    async with serving() as running, running.visited() as visitor:
        for number in range(MOST_KNOWN):
            await visitor.ask(post(b"body", *(b"X-%d-%d: %b" % (number, line, bytes(b"x" * 90)) for line in range(28))))
        (connection,) = running.server._connections
        assert isinstance(connection, ServerConnection)
        assert 0 < len(connection._reader._heads.heads) < MOST_KNOWN
        assert sum(known.cost for known in connection._reader._heads.heads) <= MOST_BYTES


@pytest.mark.anyio
async def test_a_value_is_recalled_for_the_same_head_and_the_same_object_alone() -> None:
    first, second = object(), object()
    recalled: list[tuple[str | None, int | None, str | None]] = []

    async def handler(request: http.Request) -> http.Response:
        recalled.append((request.recall(str, first), request.recall(int, first), request.recall(str, second)))
        request.remember(request.target, first)
        return http.Response(200)

    async with visiting(handler) as visitor:
        for said in (GET, GET, GET.replace(b"/x", b"/y"), GET.replace(b"GET", b"PUT"), post(b"1"), post(b"22")):
            await visitor.ask(said)
    assert recalled == [
        (None, None, None),
        ("/x", None, None),
        (None, None, None),
        (None, None, None),
        (None, None, None),
        ("/x", None, None),
    ]


class Note:
    """What somebody found out about the fields of a head."""


@pytest.mark.anyio
async def test_r44_nothing_that_a_client_said_outlasts_its_connection() -> None:
    notes: list[weakref.ref[Note]] = []

    async def handler(request: http.Request) -> http.Response:
        note = Note()
        request.remember(note, None)
        notes.append(weakref.ref(note))
        return await echo(request)

    gc.disable()
    try:
        async with serving(handler) as running:
            async with running.visited() as visitor:
                await visitor.ask(post(b"body"))
            while running.server.connections:
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            assert [note() for note in notes] == [None]
    finally:
        gc.enable()
