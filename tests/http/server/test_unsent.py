"""The twin of `mcproxy.http.server.unsent`: which clients give way where too much waits to be taken."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import pytest

from mcproxy.http import server as http
from mcproxy.http.server.unsent import UnsentBytes
from tests.http.server.serving import serving

GET = b"GET /x HTTP/1.1\r\nHost: here\r\n\r\n"


@dataclass(eq=False)
class Client:
    """One that takes what it is told to."""

    unsent: int = 100
    was_reset: bool = False

    @property
    def held(self) -> int:
        return self.unsent

    def reset(self) -> None:
        self.was_reset = True


def waiting(clients: list[Client], most: int = 300) -> UnsentBytes:
    unsent = UnsentBytes(lambda: most)
    for client in clients:
        unsent.add(client)
    return unsent


def were_reset(clients: list[Client]) -> list[bool]:
    return [client.was_reset for client in clients]


def test_as_long_as_there_is_room_nobody_is_reset() -> None:
    clients = [Client() for _ in range(3)]
    assert waiting(clients).total == 300
    assert were_reset(clients) == [False] * 3


def test_r54_who_took_nothing_for_longest_gives_way() -> None:
    clients = [Client() for _ in range(6)]
    assert waiting(clients).total == 300
    assert were_reset(clients) == [True] * 3 + [False] * 3


def test_r8_who_takes_something_is_spared_for_those_who_take_nothing() -> None:
    clients = [Client() for _ in range(3)]
    unsent = waiting(clients)
    clients[0].unsent = 50
    unsent.add(newest := Client(70))
    assert were_reset(clients) == [False, True, False]
    assert not newest.was_reset
    assert unsent.total == 50 + 100 + 70


def test_where_all_take_something_the_oldest_gives_way_and_never_the_newest() -> None:
    clients = [Client() for _ in range(3)]
    unsent = waiting(clients)
    for client in clients:
        client.unsent = 99
    unsent.add(newest := Client(200))
    assert were_reset(clients) == [True, True, False]
    assert not newest.was_reset


def test_one_alone_may_be_sent_more() -> None:
    clients = [Client(1000)]
    assert waiting(clients).total == 1000
    assert were_reset(clients) == [False]


def test_who_has_taken_enough_counts_no_more() -> None:
    clients = [Client() for _ in range(3)]
    unsent = waiting(clients)
    for _ in range(2):
        unsent.discard(clients[0])
    assert unsent.total == 200
    unsent.add(Client())
    assert were_reset(clients) == [False] * 3


@pytest.mark.anyio
async def test_r54_a_client_that_reads_nothing_is_hung_up_on_where_another_needs_the_room() -> None:
    large = 30 << 20

    async def answer(request: http.Request) -> http.Response:
        return http.Response(200, b"x" * large)

    async with serving(answer) as running:
        running.bounds = http.Bounds(max_body=100, idle=60, write_timeout=60, connections=9, unsent=large + large // 2)
        async with running.visited() as silent, running.visited() as reading:
            await silent.say(GET)
            await silent.stream.receive(1)
            assert len((await reading.ask(GET)).body) == large
            with pytest.raises(anyio.BrokenResourceError):
                await silent.rest()
            assert len((await reading.ask(GET)).body) == large
