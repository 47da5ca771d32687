"""The twin of `mcproxy.http.server.heads`: fields, and that no head is taken for a known one that it is not."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from dataclasses import replace

import anyio
import pytest

from mcproxy.http import server as http
from mcproxy.http.server.heads import (
    LONGEST_KNOWN,
    MOST_BYTES,
    MOST_KNOWN,
    MOST_LINES,
    KnownHead,
    known_head,
)
from tests.fuzz.http import mutated
from tests.http.server.driven import DrivenConnection
from tests.http.server.serving import BOUNDS, echo, post, serving, visiting

BEFORE = b"POST /x HTTP/1.1\r\nHost: here\r\nContent-Length: "
BEHIND = b"\r\nAccept: */*\r\n\r\n"
GET = b"GET /x HTTP/1.1\r\nHost: here\r\n\r\n"
CHUNKED = b"POST /x HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"

ONCE = http.Headers.of([("Host", "here"), ("Accept", "a/b")])
TWICE = http.Headers.of([("Accept", "a/b"), ("ACCEPT", "c/d"), ("Host", "here")])


def test_names_are_compared_without_case() -> None:
    assert ONCE.get("host") == "here"
    assert "accept" in ONCE


def test_what_is_not_there_is_empty() -> None:
    assert ONCE.get("origin") is ONCE.joined("origin") is TWICE.joined("origin") is None
    assert list(ONCE.all("origin")) == list(TWICE.all("origin")) == []


def test_of_a_name_that_came_twice_all_is_known() -> None:
    assert TWICE.get("accept") == "a/b"
    assert list(TWICE.all("accept")) == ["a/b", "c/d"]
    assert list(TWICE.all("host")) == ["here"]
    assert TWICE.joined("accept") == "a/b, c/d"


def remembered(head: bytes, lines: int = 3) -> KnownHead | None:
    return known_head(head + b"body", lines, "POST", "/x", http.Headers({"host": "here"}))


@pytest.mark.parametrize("length", [0, 4, 12345])
def test_a_head_is_known_whatever_the_length(length: int) -> None:
    known = remembered(BEFORE + b"4" + BEHIND)
    assert known is not None
    body = bytes(length)
    assert known.body_in(BEFORE + b"%d" % length + BEHIND + body) == (length, body)


def test_a_body_may_still_be_to_come_and_nothing_may_follow_it() -> None:
    known = remembered(BEFORE + b"4" + BEHIND)
    assert known is not None
    assert known.body_in(BEFORE + b"4" + BEHIND + b"bo") == (4, b"bo")
    assert known.body_in(BEFORE + b"4" + BEHIND + b"bodyGET") is None


@pytest.mark.parametrize("digits", [b"", b"+4", b"-4", b" 4", b"4 ", b"4x", b"4,4", b"4\r\nX: 4", b"9" * 20, b"\xb2"])
def test_a_length_is_of_digits_alone(digits: bytes) -> None:
    known = remembered(BEFORE + b"4" + BEHIND)
    assert known is not None
    assert known.body_in(BEFORE + digits + BEHIND) is None


@pytest.mark.parametrize(
    ("head", "lines"),
    [
        (b"GET /x HTTP/1.1\r\nHost: here\r\n\r\n", 1),
        (BEFORE + b"4" + BEHIND[:-2], 3),
        (BEFORE + b"4x" + BEHIND, 3),
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


# On a connection


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


async def answered(*said: bytes) -> bytes:
    """What is answered to the last of it."""
    async with asyncio.TaskGroup() as tasks:
        driven = DrivenConnection(tasks)
        for data in said:
            before = len(driven.said)
            driven.send(data)
            await driven.settle()
        answer = driven.said[before:]
        driven.lose()
        return answer


@pytest.mark.anyio
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
@pytest.mark.parametrize("seed", range(50))
async def test_what_is_nearly_a_known_head_is_taken_for_what_its_parser_takes_it_for(seed: int) -> None:
    chance = random.Random(seed)
    sample = post(b"body\r\n\r\nmore", b"Accept: */*", b"Authorization: Bearer x")
    for _ in range(40):
        data = mutated(chance, [sample])
        assert await answered(sample, data) == await answered(data), data


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
async def test_heads_that_are_not_known_again_bring_the_same_fields_as_well_where_they_say_the_same() -> None:
    heard: list[http.Request] = []

    async def handler(request: http.Request) -> http.Response:
        heard.append(request)
        return await echo(request)

    chunked = b"POST /x HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
    async with visiting(handler) as visitor:
        for said in (chunked, chunked, chunked.replace(b"Host: here", b"Host: there")):
            assert (await visitor.ask(said)).body == b"POST /x body"
    first, second, third = heard
    assert second.fields is first.fields
    assert third.fields["host"] == "there"


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
@pytest.mark.parametrize("head", [post(b""), GET, CHUNKED], ids=["known by its bytes", "without a length", "in chunks"])
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
        assert 0 < len(connection._reader._known) < MOST_KNOWN
        assert sum(known.cost for known in connection._reader._known) <= MOST_BYTES


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
