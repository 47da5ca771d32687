"""How many streams are open, and which of them are ended because their credentials are not good any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
import pytest

from mcproxy.access.identity import Identified
from mcproxy.call.identity import ANONYMOUS, Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.open_streams import OpenStream, OpenStreams, TooManyStreams
from mcproxy.downstream.io.responses import Refusal
from mcproxy.settings import LimitSettings
from mcproxy.settings.access.authentication import Authentication
from tests.fakes.gateway import FakeGateway, edge_of, quick
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

SETTINGS = Authentication()
ANN = Principal("ann", frozenset({"reader"}))


@dataclass
class Door:
    """Real streams of one principal, who is judged as a test says."""

    context: TransportContext
    streams: OpenStreams
    found: Identified | Refusal
    judged: int = 0
    ended: int = 0
    adopted: list[Principal] = field(default_factory=list)
    done: anyio.Event = field(default_factory=anyio.Event)
    """Set when a stream was judged, and what follows from that was done."""

    def open(self, identified: Identified, *, adopts: bool = False) -> OpenStream:
        stream = self.streams.open(
            identified, self._identify, lambda: self._end(stream), self.adopted.append if adopts else None
        )
        return stream

    async def reload(self) -> None:
        self.context.reconfigure(self.context.proxy, self.context.forwarded)
        await anyio.wait_all_tasks_blocked()

    async def _identify(self) -> Identified:
        self.judged += 1
        asyncio.get_running_loop().call_soon(self.done.set)
        if isinstance(self.found, Refusal):
            raise self.found
        return self.found

    def _end(self, stream: OpenStream) -> None:
        self.ended += 1
        stream.close()


@asynccontextmanager
async def door(found: Identified | Refusal, now: float = 1000) -> AsyncIterator[Door]:
    limits = LimitSettings(max_streams_per_principal=2)
    async with edge_of(FakeGateway(), quick(limits)) as context, anyio.create_task_group() as tasks:
        opened = Door(context, OpenStreams(context, wall=lambda: now), found)
        tasks.start_soon(opened.streams.judge_after_reloads)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(GUARD):
            yield opened
        tasks.cancel_scope.cancel()


def identified(principal: Principal = ANN, until: float = float("inf")) -> Identified:
    return Identified(principal, SETTINGS, until=until)


async def test_r9_waiting_returns_once_the_last_stream_of_any_principal_has_ended() -> None:
    closed: list[bool] = []

    async def drain(streams: OpenStreams) -> None:
        await streams.wait_closed()
        closed.append(True)

    async with door(identified()) as d, anyio.create_task_group() as tasks:
        await d.streams.wait_closed()
        first, last = d.open(identified(ANONYMOUS)), d.open(identified())
        tasks.start_soon(drain, d.streams)
        await anyio.wait_all_tasks_blocked()
        first.close()
        first.close()
        await anyio.wait_all_tasks_blocked()
        assert not closed
        last.close()
    assert closed


async def test_r54_one_stream_too_many_is_refused_until_another_is_closed() -> None:
    async with door(identified()) as d:
        first, _ = d.open(identified()), d.open(identified())
        with pytest.raises(TooManyStreams):
            d.open(identified())
        d.open(identified(ANONYMOUS))
        first.close()
        d.open(identified())


async def test_a_stream_whose_credentials_are_still_good_stays_after_a_reload() -> None:
    async with door(identified()) as d:
        stream = d.open(identified())
        await d.reload()
        await d.reload()
        assert (d.judged, stream.is_open) == (2, True)


@pytest.mark.parametrize(
    "found", [Refusal(401, -32600, "revoked"), identified(Principal("bob"))], ids=["nobody", "other"]
)
async def test_a_stream_that_would_be_refused_or_anothers_is_ended_after_a_reload(found: Identified | Refusal) -> None:
    async with door(found) as d:
        stream = d.open(identified(), adopts=True)
        await d.reload()
        assert (d.ended, d.adopted, stream.is_open) == (1, [], False)


async def test_other_roles_are_adopted_where_the_stream_can_and_end_it_where_it_cannot() -> None:
    demoted = Principal("ann")
    async with door(identified(demoted)) as d:
        adopting, rigid = d.open(identified(), adopts=True), d.open(identified())
        await d.reload()
        assert (d.adopted, adopting.is_open, rigid.is_open) == ([demoted], True, False)


async def test_a_principal_that_cannot_be_found_out_at_present_keeps_its_stream() -> None:
    async with door(Refusal(503, -32603, "no keys")) as d:
        stream = d.open(identified())
        await d.reload()
        assert (d.judged, stream.is_open) == (1, True)


async def test_a_stream_is_judged_when_its_credentials_expire() -> None:
    async with door(Refusal(401, -32600, "expired")) as d:
        d.open(identified(until=1000.01))
        await d.done.wait()
        assert (d.judged, d.ended) == (1, 1)


async def test_a_stream_that_is_closed_before_its_credentials_expire_is_not_judged() -> None:
    async with door(identified()) as d:
        d.open(identified(until=1000.01)).close()
        other = d.open(identified(until=1000.02))
        await d.done.wait()
        assert (d.judged, other.is_open) == (1, True)


async def test_r54_one_anonymous_address_takes_the_streams_of_no_other() -> None:
    near, far = (replace(ANONYMOUS, address=address) for address in ("203.0.113.7", "203.0.113.8"))
    async with edge_of(FakeGateway(), quick(LimitSettings(max_streams_per_principal=2, max_sessions=3))) as context:
        opened = Door(context, OpenStreams(context), identified())
        first = opened.open(identified(near))
        opened.open(identified(near))
        with pytest.raises(TooManyStreams, match="all your 2"):
            opened.open(identified(near))
        opened.open(identified(far))
        with pytest.raises(TooManyStreams, match="max_sessions"):
            opened.open(identified(far))
        first.close()
        opened.open(identified(far))


async def test_r54_anonymous_callers_share_all_streams() -> None:
    limits = LimitSettings(max_streams_per_principal=1, max_sessions=3)
    async with edge_of(FakeGateway(), quick(limits)) as context:
        opened = Door(context, OpenStreams(context), identified())
        for _ in range(3):
            opened.open(identified(ANONYMOUS))
        with pytest.raises(TooManyStreams, match="max_sessions"):
            opened.open(identified(ANONYMOUS))


def test_by_default_no_single_caller_can_take_all_sessions_or_streams() -> None:
    limits = LimitSettings()
    assert limits.max_sessions_per_principal * 10 <= limits.max_sessions
    assert limits.max_streams_per_principal * 10 <= limits.max_sessions
