"""The twin of `mcproxy.upstream.http.responses`: events as they arrive, and refused versions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

from mcproxy.protocol.sse import Event, EventTooLarge
from mcproxy.upstream.http.responses import (
    BYTES_PER_TURN,
    EVENTS_PER_TURN,
    IncomingEvents,
    refuses_version,
)

pytestmark = pytest.mark.anyio


class Bystander:
    """A task that has something to do in each turn of the loop."""

    def __init__(self) -> None:
        self.turns = 0

    async def run(self) -> None:
        while True:
            self.turns += 1
            await anyio.lowlevel.checkpoint()


async def arriving(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def taken(*chunks: bytes, limit: int = 1000) -> tuple[list[list[Event]], int]:
    """The batches of events, and the turns that a bystander had until the last of them."""
    bystander = Bystander()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bystander.run)
        batches = [batch async for batch in IncomingEvents(arriving(*chunks), limit)]
        tasks.cancel_scope.cancel()
    return batches, bystander.turns


async def test_events_come_as_they_arrive_wherever_they_are_cut() -> None:
    batches, _ = await taken(b"data: a\n\nda", b"ta: b\n\n", b"data: c")
    assert batches == [[Event(b"a")], [Event(b"b")]]


async def test_r1_of_many_events_that_arrive_at_once_a_few_are_taken_before_others_have_a_turn() -> None:
    batches, turns = await taken(b"data: x\n\n" * (2 * EVENTS_PER_TURN + 1))
    assert [len(batch) for batch in batches] == [EVENTS_PER_TURN, EVENTS_PER_TURN, 1]
    assert turns >= 2


async def test_r1_what_makes_no_event_is_decoded_a_part_at_a_time() -> None:
    batches, turns = await taken(b"\n" * (4 * BYTES_PER_TURN))
    assert batches == []
    assert turns >= 3


@pytest.mark.parametrize(
    "text",
    [
        "Bad Request: Unsupported protocol version: 2025-11-25 (supported versions: 2025-06-18)",
        "Bad Request: Unsupported MCP-Protocol-Version: 2025-11-25",
        '{"error":"unsupported protocol version"}',
    ],
)
def test_a_refused_version_is_known_by_what_sdks_say_of_it(text: str) -> None:
    assert refuses_version(400, text)
    assert not refuses_version(500, text)


def test_r4_a_tool_that_speaks_of_another_version_refuses_none_of_ours() -> None:
    assert not refuses_version(400, "unsupported version of the TLS protocol")


async def test_an_event_over_the_limit_is_refused() -> None:
    with pytest.raises(EventTooLarge):
        await anext(IncomingEvents(arriving(b"data: " + b"x" * 50_000), limit=40_000))
