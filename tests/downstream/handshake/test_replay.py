"""Event streams as logs that outlive their connections."""

from __future__ import annotations

import gc
from itertools import count

import pytest

from mcproxy.call.identity import ANONYMOUS, Principal, Rights
from mcproxy.downstream.handshake.replay import FEW, ReplayPools, ReplayStream, ReplayStreams, UnknownEvent
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.protocol.jsonrpc import Notification, Response
from mcproxy.protocol.sse import Event, EventDecoder
from mcproxy.settings import LimitSettings

pytestmark = pytest.mark.anyio

RIGHTS = Rights(ANONYMOUS, "principal:anonymous", "")


def streams(**limits: int) -> ReplayStreams:
    names = count()
    return ReplayStreams(LimitSettings.model_validate(limits), lambda: f"{next(names):02x}")


def answer(id: int) -> Response:
    return Response(id, {})


async def read(stream: ReplayStream, after: int | None = None) -> list[Event]:
    """What a new connection gets at once."""
    send_buffer = SendBuffer(LimitSettings())
    stream.attach(send_buffer, after=after)
    return EventDecoder(10**9).feed(send_buffer.take())


async def test_what_was_sent_without_a_connection_is_there_for_the_next() -> None:
    stream = streams().open(RIGHTS)
    stream.send(answer(1))
    (event,) = await read(stream, after=0)
    assert b'"id":1' in event.data


async def test_only_what_came_after_the_event_is_replayed_and_only_of_its_stream() -> None:
    both = streams()
    one, other = both.open(RIGHTS), both.open(RIGHTS)
    for id in range(4):
        (one if id % 2 else other).send(answer(id))
    events = await read(one, after=0)
    resumed, after = both.resume(events[0].id or "", RIGHTS)
    assert resumed is one
    assert [b'"id":3' in event.data for event in await read(resumed, after)] == [True]


async def test_r39_a_lesser_request_resumes_no_answer_that_a_better_one_was_given() -> None:
    session = streams()
    better = Rights(Principal("ann", frozenset({"ops"}), frozenset({"all"})), "authority:all", "")
    for finished in (False, True):
        stream = session.open(better)
        stream.send(answer(1))
        if finished:
            stream.finish()
        for lesser in (
            Rights(Principal("ann", frozenset(), frozenset({"all"})), "authority:all", ""),
            Rights(Principal("ann", frozenset({"ops"})), "authority:all", ""),
            Rights(better.principal, "authority:less", ""),
            Rights(better.principal, "authority:all", "others"),
        ):
            with pytest.raises(UnknownEvent):
                session.resume(f"{stream.name}-0", lesser)
        assert session.resume(f"{stream.name}-0", better) == (stream, 0)


async def test_what_the_listening_stream_sent_is_forgotten_and_nothing_else() -> None:
    session = streams()
    answering = session.open(RIGHTS)
    for stream in (session.listening, answering):
        stream.send(answer(1))
    session.forget_listening()
    assert await read(session.listening, after=0) == []
    assert len(await read(answering, after=0)) == 1
    session.listening.send(answer(2))
    assert [b'"id":2' in event.data for event in await read(session.listening, after=1)] == [True]


async def test_event_ids_are_unique_among_all_streams() -> None:
    both = streams()
    ids = []
    for stream in (both.listening, both.open(RIGHTS), both.open(RIGHTS)):
        stream.send(answer(1))
        stream.send(answer(2))
        ids += [event.id for event in await read(stream, after=0)]
    assert len(set(ids)) == 6


@pytest.mark.parametrize("limits", [{"replay_events": 2}, {"replay_bytes": 150}])
async def test_the_oldest_events_are_forgotten(limits: dict[str, int]) -> None:
    stream = streams(**limits).open(RIGHTS)
    for id in range(50):
        stream.send(answer(id))
    events = await read(stream, after=0)
    assert 1 <= len(events) <= 3
    assert b'"id":49' in events[-1].data


async def test_the_newest_connection_has_the_stream() -> None:
    stream = streams().open(RIGHTS)
    older, newer = SendBuffer(LimitSettings()), SendBuffer(LimitSettings())
    stream.attach(older)
    stream.attach(newer)
    stream.detach(older)
    stream.send(Notification("n", {}))
    assert older.drained
    assert len(newer) == 1


async def test_a_finished_stream_is_forgotten_with_its_last_event() -> None:
    session = streams(replay_events=1)
    stream = session.open(RIGHTS)
    stream.send(answer(1))
    stream.finish()
    name = stream.name
    assert session.resume(f"{name}-0", RIGHTS) == (stream, 0)
    session.open(RIGHTS).send(answer(2))
    with pytest.raises(UnknownEvent):
        session.resume(f"{name}-0", RIGHTS)


async def test_r54_of_answers_that_nothing_is_kept_of_no_more_than_a_few_are_remembered() -> None:
    session = streams(replay_events=4)
    for number in range(1000):
        stream = session.open(RIGHTS)
        stream.send(answer(number))
        stream.finish()
    assert sum(isinstance(each, ReplayStream) for each in gc.get_referents(*gc.get_referents(session))) <= 2 * (FEW + 4)


async def test_a_listening_stream_of_an_earlier_life_goes_on_from_now() -> None:
    session = streams()
    assert session.resume("gffff-12", RIGHTS) == (session.listening, None)


# What sessions keep together

ANN, BOB = Principal("ann"), Principal("bob")
EVENT = b"x" * 100_000
NAMES = count()


def pools(**limits: int) -> ReplayPools:
    settings = LimitSettings.model_validate(limits)
    return ReplayPools(lambda: settings)


def session(pools: ReplayPools, principal: Principal) -> ReplayStreams:
    return ReplayStreams(LimitSettings(), lambda: f"{next(NAMES):x}", pools.of(principal))


def sent(session: ReplayStreams, number: int = 1) -> ReplayStream:
    """A stream of the session that has ended, with so many events."""
    stream = session.open(RIGHTS)
    for _ in range(number):
        stream.put(EVENT, droppable=False)
    stream.finish()
    return stream


def is_kept(session: ReplayStreams, stream: ReplayStream) -> bool:
    """Whether anything is left of a stream that has ended."""
    try:
        session.resume(f"{stream.name}-0", RIGHTS)
    except UnknownEvent:
        return False
    return True


def test_r54_the_sessions_of_one_caller_keep_so_many_bytes_together_and_the_one_idle_for_longest_loses_first() -> None:
    shared = pools(replay_bytes_per_principal=500_000)
    sessions = [session(shared, ANN) for _ in range(3)]
    streams = [sent(each, 2) for each in sessions]
    assert [is_kept(*each) for each in zip(sessions, streams, strict=True)] == [False, True, True]
    assert sum(pool.size for pool in shared.of(ANN)[:1]) <= 500_000


def test_r54_no_caller_takes_the_room_of_another() -> None:
    shared = pools(replay_bytes_per_principal=300_000)
    of_bob = session(shared, BOB)
    stream = sent(of_bob)
    for _ in range(100):
        sent(session(shared, ANN), 2)
    assert is_kept(of_bob, stream)


@pytest.mark.parametrize("principals", [[ANONYMOUS] * 3, [ANN, BOB, Principal("eve")]])
def test_r54_all_sessions_keep_so_many_bytes_together(principals: list[Principal]) -> None:
    shared = pools(replay_bytes_total=500_000)
    sessions = [session(shared, principal) for principal in principals]
    streams = [sent(each, 2) for each in sessions]
    assert [is_kept(*each) for each in zip(sessions, streams, strict=True)] == [False, True, True]


def test_a_session_that_has_ended_takes_no_room_whatever_is_sent_after_it() -> None:
    shared = pools()
    ended = session(shared, ANN)
    stream = ended.open(RIGHTS)
    stream.put(EVENT, droppable=False)
    ended.close()
    stream.put(EVENT, droppable=False)
    assert [pool.size for pool in shared.of(ANN)] == [0, 0]


def test_one_event_that_is_larger_than_the_room_is_not_kept() -> None:
    shared = pools(replay_bytes_per_principal=50_000)
    own = session(shared, ANN)
    assert not is_kept(own, sent(own))
    assert [pool.size for pool in shared.of(ANN)] == [0, 0]
