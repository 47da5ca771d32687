"""How many streams there are, and when the last of them has ended."""

from __future__ import annotations

import anyio
import pytest

from mcproxy.call.identity import ANONYMOUS, Principal
from mcproxy.downstream.io.stream_limits import StreamLimits
from tests.fakes.gateway import FakeGateway, edge_of

pytestmark = pytest.mark.anyio


async def test_r9_who_drains_waits_until_the_last_stream_of_anybody_has_ended() -> None:
    ended: list[bool] = []

    async def drain(streams: StreamLimits) -> None:
        await streams.wait_closed()
        ended.append(True)

    async with edge_of(FakeGateway()) as context, anyio.create_task_group() as tasks:
        streams = StreamLimits(context)
        await streams.wait_closed()
        streams.open(ANONYMOUS)
        streams.open(Principal("ann"))
        tasks.start_soon(drain, streams)
        await anyio.wait_all_tasks_blocked()
        streams.close(ANONYMOUS)
        await anyio.wait_all_tasks_blocked()
        assert not ended
        streams.close(Principal("ann"))
    assert ended
