"""The twin of `mcproxy.http.server.unsent`: which clients are cut off where too much waits to be taken."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import pytest

from mcproxy.http import server as http
from mcproxy.http.server.unsent import PATIENCE, SLOWEST, UnsentBytes
from tests.http.server.serving import serving

GET = b"GET /x HTTP/1.1\r\nHost: here\r\n\r\n"


@dataclass(eq=False)
class Client:
    """One that takes what it is told to."""

    unsent: int = 10 * SLOWEST
    was_reset: bool = False

    @property
    def held(self) -> int:
        return self.unsent

    def reset(self) -> None:
        self.was_reset = True


MOST = 30 * SLOWEST


class Waiting:
    """Three clients for which as much waits as may, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.unsent = UnsentBytes(lambda: MOST, lambda: self.now)
        self.clients = [Client() for _ in range(3)]
        for client in self.clients:
            self.unsent.add(client)

    def one_more(self, after: float) -> Client:
        self.now += after
        self.clients.append(client := Client())
        self.unsent.add(client)
        return client

    @property
    def were_reset(self) -> list[bool]:
        return [client.was_reset for client in self.clients]


def test_as_long_as_there_is_room_nobody_is_cut_off() -> None:
    waiting = Waiting()
    assert waiting.unsent.total == MOST
    waiting.unsent.discard(waiting.clients[0])
    waiting.one_more(after=3600)
    assert not any(waiting.were_reset)


def test_r54_who_took_nothing_for_longest_gives_way() -> None:
    waiting = Waiting()
    waiting.one_more(after=PATIENCE)
    assert waiting.were_reset == [True, False, False, False]
    assert waiting.unsent.total == MOST


def test_r8_who_takes_something_is_spared_for_those_who_take_nothing() -> None:
    waiting = Waiting()
    waiting.clients[0].unsent -= int(PATIENCE) * SLOWEST
    waiting.one_more(after=PATIENCE)
    assert waiting.were_reset == [False, True, False, False]


def test_who_takes_less_than_the_slowest_may_is_not_spared() -> None:
    waiting = Waiting()
    waiting.clients[0].unsent -= int(PATIENCE) * SLOWEST - 1
    waiting.one_more(after=PATIENCE)
    assert waiting.were_reset == [True, False, False, False]


def test_r8_in_a_burst_nobody_is_cut_off_however_much_waits() -> None:
    waiting = Waiting()
    for _ in range(17):
        waiting.one_more(after=PATIENCE / 7 / 20)
    assert not any(waiting.were_reset)
    assert waiting.unsent.total == 20 * 10 * SLOWEST


def test_the_more_waits_the_sooner_a_client_is_cut_off() -> None:
    waiting = Waiting()
    for _ in range(2):
        waiting.one_more(after=0)
    waiting.one_more(after=PATIENCE / 2)
    assert waiting.were_reset == [True, False, False, False, False, False]


def test_r8_where_all_go_on_reading_nobody_is_cut_off() -> None:
    waiting = Waiting()
    for _ in range(4):
        for client in waiting.clients:
            client.unsent -= SLOWEST
        waiting.one_more(after=1)
    assert not any(waiting.were_reset)


def test_what_is_added_behind_the_rest_gives_no_more_time() -> None:
    waiting = Waiting()
    waiting.now = PATIENCE
    waiting.clients[0].unsent += SLOWEST
    waiting.unsent.add(waiting.clients[0])
    assert waiting.were_reset == [True, False, False]
    assert waiting.unsent.total == 20 * SLOWEST


def test_one_alone_may_be_sent_more() -> None:
    waiting = Waiting()
    for client in waiting.clients[1:]:
        waiting.unsent.discard(client)
    waiting.clients[0].unsent = 2 * MOST
    waiting.now = 3600
    waiting.unsent.add(waiting.clients[0])
    assert not any(waiting.were_reset)


def test_who_has_taken_enough_counts_no_more() -> None:
    waiting = Waiting()
    for _ in range(2):
        waiting.unsent.discard(waiting.clients[0])
    assert waiting.unsent.total == 20 * SLOWEST


@pytest.mark.anyio
async def test_r54_a_client_that_reads_nothing_is_hung_up_on_where_another_needs_the_room() -> None:
    large = 30 << 20

    async def answer(request: http.Request) -> http.Response:
        return http.Response(200, b"x" * large)

    async with serving(answer) as running:
        running.bounds = http.Bounds(max_body=100, idle=60, write_timeout=60, connections=9, unsent=large // 100)
        async with running.visited() as silent, running.visited() as reading:
            await silent.say(GET)
            await silent.stream.receive(1)
            while running.server.unsent.total:
                assert len((await reading.ask(GET)).body) == large
            with pytest.raises(anyio.BrokenResourceError):
                await silent.rest()
            assert len((await reading.ask(GET)).body) == large
