"""What waits to be written to one client."""

from __future__ import annotations

import anyio
import pytest

from mcproxy.downstream.outbox import Outbox, pump
from mcproxy.settings import Limits

pytestmark = pytest.mark.anyio


def outbox(messages: int = 3, size: int = 100) -> Outbox:
    return Outbox(Limits(max_queued_messages=messages, max_queued_bytes=size))


async def test_frames_are_taken_in_order_and_together() -> None:
    box = outbox()
    box.put(b"a")
    box.put(b"b")
    assert await box.take(0) == b"ab"
    assert await box.take(0) is None


async def test_r23_what_may_be_missed_is_dropped_when_there_is_no_room() -> None:
    box = outbox(messages=1)
    box.put(b"answer")
    box.put(b"progress", may_miss=True)
    assert await box.take(0) == b"answer"


@pytest.mark.parametrize("box", [outbox(messages=2), outbox(size=2)])
async def test_r23_what_may_not_ends_the_connection(box: Outbox) -> None:
    for _ in range(3):
        box.put(b"a")
    assert box.closed
    assert box.drained


async def test_r54_what_a_lost_connection_left_behind_is_held_no_longer() -> None:
    box = outbox()
    box.put(b"a")
    box.discard()
    box.put(b"b")
    assert len(box) == 0
    assert box.drained


async def test_one_frame_always_fits() -> None:
    box = outbox(size=1)
    box.put(b"large")
    assert await box.take(0) == b"large"


async def test_what_was_put_before_closing_is_still_written() -> None:
    box, written = outbox(), []

    async def write(frames: bytes) -> None:
        written.append(frames)

    box.put(b"last")
    box.close()
    box.put(b"too late")
    await pump(box, write, patience=1)
    assert written == [b"last"]


async def test_a_wake_refills_and_is_no_keep_alive() -> None:
    box, written = outbox(), []
    signals = [b"", b"change"]

    def refill() -> None:
        frame = signals.pop(0) if signals else b""
        if frame:
            box.put(frame)

    async def write(frames: bytes) -> None:
        written.append(frames)
        box.close()

    box.wake()
    with anyio.fail_after(5):
        await pump(box, write, patience=60, idle=b"idle", refill=refill)
    assert written == [b"change"]
