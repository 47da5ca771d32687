"""What waits to be written to one client."""

from __future__ import annotations

from itertools import count

import anyio
import pytest

from mcproxy.downstream.io.send_buffer import SendBuffer, pump
from mcproxy.http.server import UnsentBytes
from mcproxy.http.server.unsent import PATIENCE
from mcproxy.settings import LimitSettings
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def send_buffer(messages: int = 3, size: int = 100) -> SendBuffer:
    return SendBuffer(LimitSettings(max_queued_messages=messages, max_queued_bytes=size))


async def test_frames_are_taken_in_order_and_together() -> None:
    box = send_buffer()
    box.put(b"a")
    box.put(b"b")
    assert box.take() == b"ab"
    assert box.take() == b""


async def test_r23_what_may_be_missed_is_dropped_when_there_is_no_room() -> None:
    box = send_buffer(messages=1)
    box.put(b"answer")
    box.put(b"progress", droppable=True)
    assert box.take() == b"answer"


FRAME = b"x" * 100_000


async def test_r54_of_all_buffers_together_the_one_that_waits_for_longest_gives_way() -> None:
    seconds = count(step=PATIENCE)
    queued = UnsentBytes(lambda: 500_000, lambda: next(seconds))
    boxes = [SendBuffer(LimitSettings(), queued) for _ in range(3)]
    for box in boxes:
        box.put(FRAME)
        box.put(FRAME)
    assert [box.closed for box in boxes] == [True, False, False]
    assert [len(box) for box in boxes] == [0, 2, 2]
    assert queued.total == 400_000


async def test_what_is_taken_leaves_room_for_others() -> None:
    queued = UnsentBytes(lambda: 500_000)
    boxes = [SendBuffer(LimitSettings(), queued) for _ in range(9)]
    for box in boxes:
        box.put(FRAME)
        box.put(FRAME)
        assert len(box.take()) == 200_000
    assert not any(box.closed for box in boxes)
    boxes[0].put(FRAME)
    boxes[0].discard()
    assert queued.total == 0


@pytest.mark.parametrize("box", [send_buffer(messages=2), send_buffer(size=2)])
async def test_r23_what_may_not_ends_the_connection(box: SendBuffer) -> None:
    for _ in range(3):
        box.put(b"a")
    assert box.closed
    assert box.drained


async def test_r54_what_a_lost_connection_left_behind_is_held_no_longer() -> None:
    box = send_buffer()
    box.put(b"a")
    box.discard()
    box.put(b"b")
    assert len(box) == 0
    assert box.drained


async def test_one_frame_always_fits() -> None:
    box = send_buffer(size=1)
    box.put(b"large")
    assert box.take() == b"large"


async def test_what_was_put_before_closing_is_still_written() -> None:
    box, written = send_buffer(), []

    async def write(frames: bytes) -> None:
        written.append(frames)

    box.put(b"last")
    box.close()
    box.put(b"too late")
    await pump(box, write)
    assert written == [b"last"]


async def test_a_wake_refills() -> None:
    box, written = send_buffer(), []
    signals: list[bytes] = []
    looked = anyio.Event()

    def refill() -> bool:
        looked.set()
        for frame in signals:
            box.put(frame)
        signals.clear()
        return False

    async def write(frames: bytes) -> None:
        written.append(frames)
        box.close()

    box.refill = refill
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pump, box, write)
            await looked.wait()
            signals.append(b"change")
            box.notify_writer()
    assert written == [b"change"]


async def test_a_closed_box_asks_for_nothing_that_it_could_not_take() -> None:
    box = send_buffer()
    asked = []

    def refill() -> bool:
        asked.append(True)
        return False

    box.refill = refill
    box.close()
    assert box.take() == b""
    assert asked == []
