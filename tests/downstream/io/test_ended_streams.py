"""Which resources a client watched on a stream that ended, for how long that is remembered, and of how many."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mcproxy.call.identity import Caller, Principal
from mcproxy.downstream.io.ended_streams import GAP, MAX_KEPT, EndedStreams
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import raw

ANN = Caller(Principal("ann"), LATEST, info=raw({"name": "c"}))


def test_what_an_ended_stream_watched_was_missed_once() -> None:
    ended = EndedStreams()
    one, other = EndedStreams.keys(ANN, ["x:1", "x:2"])
    ended.note(EndedStreams.keys(ANN, ["x:1"]))
    assert [ended.missed(one), ended.missed(other), ended.missed(one)] == [True, False, False]


def test_each_of_several_clients_that_say_the_same_of_themselves_missed_what_its_stream_watched() -> None:
    ended = EndedStreams()
    (key,) = EndedStreams.keys(ANN, ["x:1"])
    for _ in range(2):
        ended.note(EndedStreams.keys(ANN, ["x:1"]))
    assert [ended.missed(key) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    "other",
    [
        replace(ANN, principal=Principal("bob")),
        replace(ANN, endpoint="up"),
        replace(ANN, info=raw({"name": "d"})),
    ],
    ids=["principal", "endpoint", "client"],
)
def test_another_client_missed_nothing(other: Caller) -> None:
    ended = EndedStreams()
    ended.note(EndedStreams.keys(ANN, ["x:1"]))
    (key,) = EndedStreams.keys(other, ["x:1"])
    assert not ended.missed(key)


def test_after_a_while_and_beyond_a_number_it_is_forgotten() -> None:
    now = [0.0]
    ended = EndedStreams(clock=lambda: now[0])
    first, *_, last = keys = EndedStreams.keys(ANN, [f"x:{n}" for n in range(MAX_KEPT + 1)])
    ended.note(keys)
    assert [ended.missed(first), ended.missed(last)] == [False, True]
    ended.note(keys[-1:])
    now[0] += GAP + 1
    assert not ended.missed(last)
