"""The twin of `mcproxy.upstream.reconnecting`: a link goes through its table, and through nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest
from anyio.abc import TaskGroup
from prometheus_client import CollectorRegistry

from mcproxy.call.calls import Failed, Handler, Outcome
from mcproxy.call.identity import LinkOwner
from mcproxy.call.upstreams import (
    Connected,
    Disconnected,
    Idled,
    LinkFailure,
    LinkState,
    PushChannel,
    Retired,
    ServerIdentity,
)
from mcproxy.settings import UpstreamSettings
from mcproxy.telemetry.logs import MAX_TEXT
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.idling import NEVER_IDLE, Idling, Recorded
from mcproxy.upstream.link import Link, NotAccepted, Unreachable
from mcproxy.upstream.reconnecting import TRANSITIONS, LinkEvent, ReconnectingLink
from tests.timeouts import GUARD
from tests.upstream.support import DONE, QUICK, Events, FakeLink, request

pytestmark = pytest.mark.anyio

SPEC = UpstreamSettings(name="u", prefix="u", command="c", timeouts=QUICK)
RECORDED = Idling(recorded=Recorded(FakeLink().identity))
EDGES = [
    (state, event)
    for state, row in TRANSITIONS.items()
    for event in row
    if (state, event) != (LinkState.CONNECTING, LinkEvent.IDLED)  # taken as it starts: a test of its own
]


@dataclass
class Rig:
    """A link that runs; each attempt to connect waits for the next of `outcomes`."""

    link: ReconnectingLink
    outcomes: anyio.abc.ObjectSendStream[FakeLink | Exception]
    events: Events
    tasks: TaskGroup
    connected: list[FakeLink] = field(default_factory=list)
    hold: anyio.Event | None = None
    """Keeps calls running, and the link in use, until it is set."""

    async def cause(self, event: LinkEvent) -> None:
        match event:
            case LinkEvent.CONNECTED:
                self.connected.append(FakeLink(hold=self.hold))
                await self.outcomes.send(self.connected[-1])
            case LinkEvent.FAILED:
                await self.outcomes.send(Unreachable("down"))
            case LinkEvent.LOST:
                self.connected[-1].lost.set()
            case LinkEvent.RESTARTED:
                self.link.restart("on purpose")
            case LinkEvent.RETIRING:
                self.link.drain()
            case LinkEvent.STOPPED:
                self.link.stop()
            case LinkEvent.IDLED:
                assert self.hold is not None
                self.hold.set()
                await self.events.until(lambda: self.link.status.state is LinkState.IDLE)
            case LinkEvent.WANTED:
                self.tasks.start_soon(self.link, request("tools/call"))
        await anyio.wait_all_tasks_blocked()

    async def bring(self, state: LinkState) -> None:
        for event in way_to(state):
            await self.cause(event)
        assert self.link.status.state is state


def way_to(state: LinkState) -> list[LinkEvent]:
    """The shortest way through the table."""
    ways: deque[tuple[LinkState, list[LinkEvent]]] = deque([(LinkState.CONNECTING, [])])
    while ways[0][0] is not state:
        here, way = ways.popleft()
        ways.extend(
            (after, [*way, event]) for event, after in TRANSITIONS.get(here, {}).items() if (here, event) in EDGES
        )
    return ways[0][1]


async def ready(owner: LinkOwner, identity: ServerIdentity, send: Handler) -> None:
    """Prepares nothing."""


@asynccontextmanager
async def rig(idling: Idling = NEVER_IDLE) -> AsyncIterator[Rig]:
    send, receive = anyio.create_memory_object_stream[FakeLink | Exception](1)

    @asynccontextmanager
    async def connect(_: LinkContext) -> AsyncIterator[Link]:
        outcome = await receive.receive()
        if isinstance(outcome, Exception):
            raise outcome
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome.fail_with_bug)
            yield outcome
            tasks.cancel_scope.cancel()

    events = Events()
    context = LinkContext(SPEC, Metrics(CollectorRegistry()), lambda change: None)
    link = ReconnectingLink(
        context, connect, events, delays=lambda _: 0, clock=lambda: 7.0, prepare=ready, idling=idling
    )
    with anyio.fail_after(GUARD):
        async with send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            await anyio.wait_all_tasks_blocked()
            yield Rig(link, send, events, tasks)
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("state", "event"), EDGES, ids=lambda member: member.name)
async def test_every_edge_of_the_table_is_taken_by_the_link_itself(state: LinkState, event: LinkEvent) -> None:
    async with rig(Idling(0.001) if LinkEvent.IDLED in [*way_to(state), event] else NEVER_IDLE) as it:
        it.hold = anyio.Event()
        it.tasks.start_soon(it.link, request("tools/call"))
        await it.bring(state)
        await it.cause(event)
        assert it.link.status.state is TRANSITIONS[state][event]


async def test_a_link_that_starts_idle_tells_what_was_recorded_and_connects_with_the_first_call() -> None:
    async with rig(RECORDED) as it:
        assert it.link.status.state is TRANSITIONS[LinkState.CONNECTING][LinkEvent.IDLED]
        assert it.events.all == [Idled("u", None, FakeLink().identity, {})]
        await it.cause(LinkEvent.WANTED)
        await it.cause(LinkEvent.CONNECTED)
        assert [type(event) for event in it.events.all] == [Idled, Connected]
        assert it.link.reconnects == 0


async def test_concurrent_calls_share_one_start() -> None:
    async with rig(RECORDED) as it:
        for _ in range(5):
            await it.cause(LinkEvent.WANTED)
        await it.cause(LinkEvent.CONNECTED)
        assert len(it.connected) == 1
        assert it.connected[0].calls == 5


async def test_a_start_after_an_idle_time_is_no_reconnect_and_a_loss_is() -> None:
    async with rig(Idling(0.001)) as it:
        for _ in range(2):
            await it.cause(LinkEvent.CONNECTED)
            await it.events.until(lambda: it.link.status.state is LinkState.IDLE)
            await it.cause(LinkEvent.WANTED)
        assert it.link.reconnects == 0
        await it.cause(LinkEvent.FAILED)
        await it.cause(LinkEvent.CONNECTED)
        assert it.link.reconnects == 0


async def test_a_connection_that_is_drained_ends_the_link_without_another_attempt() -> None:
    async with rig() as it:
        await it.bring(LinkState.DRAINING)
        await it.cause(LinkEvent.LOST)
        assert [type(event) for event in it.events.all] == [Connected, Retired]


async def test_r49_a_start_that_calls_wait_for_is_the_last_one_once_the_link_is_drained() -> None:
    async with rig(RECORDED) as it:
        await it.cause(LinkEvent.WANTED)
        states = [it.link.status.state]
        for event in (LinkEvent.RETIRING, LinkEvent.CONNECTED):
            await it.cause(event)
            states.append(it.link.status.state)
        assert states == [LinkState.CONNECTING, LinkState.CONNECTING, LinkState.DRAINING]
        assert it.connected[0].calls == 1
        await it.cause(LinkEvent.LOST)
        assert [type(event) for event in it.events.all] == [Idled, Connected, Retired]


async def test_r49_a_start_that_calls_wait_for_is_not_tried_again_once_the_link_is_drained() -> None:
    async with rig(RECORDED) as it:
        await it.cause(LinkEvent.WANTED)
        it.link.drain()
        await it.cause(LinkEvent.FAILED)
        assert it.link.status.state is LinkState.RETIRED


async def test_an_error_of_megabytes_is_cut_where_it_is_kept() -> None:
    async with rig() as it:
        await it.outcomes.send(Unreachable("no answer: " + "x" * 4_000_000))
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        assert it.link.status.error is not None
        assert it.link.status.error.startswith("no answer: xxx")
        assert len(it.link.status.error) < MAX_TEXT + 50
        assert all(len(event.reason) < MAX_TEXT + 50 for event in it.events.of(Disconnected))


async def test_a_restart_is_published_at_once_and_is_no_failure() -> None:
    async with rig() as it:
        await it.bring(LinkState.READY)
        it.link.restart("on purpose")
        assert [type(event) for event in it.events.all] == [Connected, Disconnected]
        assert (it.link.status.error, it.link.status.failure) == ("on purpose", None)


async def test_a_link_that_fails_by_a_bug_of_ours_is_lost_and_made_anew() -> None:
    async with rig() as it:
        await it.bring(LinkState.READY)
        it.connected[-1].bug.set()
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        assert it.link.status.failure is LinkFailure.INTERNAL
        await it.cause(LinkEvent.CONNECTED)
        assert it.link.reconnects == 1


async def test_r3_calls_do_not_hurry_a_link_that_ends_again_and_again_soon_after_it_was_made() -> None:
    made: list[Link] = []

    @asynccontextmanager
    async def connect(_: LinkContext) -> AsyncIterator[Link]:
        made.append(FakeLink([NotAccepted("the session is lost")]))
        yield made[-1]

    context = LinkContext(SPEC, Metrics(CollectorRegistry()), lambda change: None)
    link = ReconnectingLink(context, connect, Events(), delays=lambda _: 3600, clock=lambda: 7.0, prepare=ready)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        await anyio.wait_all_tasks_blocked()
        for _ in range(5):
            tasks.start_soon(link, request("tools/list"))
            await anyio.wait_all_tasks_blocked()
        assert len(made) == 2
        tasks.cancel_scope.cancel()


async def test_calls_do_not_wait_for_a_child_that_ends_again_and_again() -> None:
    made: list[Link] = []

    @asynccontextmanager
    async def connect(_: LinkContext) -> AsyncIterator[Link]:
        link = FakeLink()
        link.lost.set()
        made.append(link)
        yield link

    patient = SPEC.model_copy(update={"timeouts": SPEC.timeouts.model_copy(update={"connect": 3600.0})})
    context = LinkContext(patient, Metrics(CollectorRegistry()), lambda change: None)
    link = ReconnectingLink(context, connect, Events(), delays=lambda _: 3600, clock=lambda: 7.0, prepare=ready)
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            outcomes = [await link(request("tools/list")) for _ in range(5)]
            tasks.cancel_scope.cancel()
    assert len(made) == 2
    assert isinstance(outcomes[-1], Failed)
    assert (
        "it ends again and again soon after it was connected, and is tried again in 3600 s"
        in outcomes[-1].error.message
    )


async def test_calls_do_not_wait_for_a_link_to_a_server_that_is_elsewhere_now_however_often_it_moves() -> None:
    made: list[Link] = []

    @asynccontextmanager
    async def connect(context: LinkContext) -> AsyncIterator[Link]:
        made.append(FakeLink([NotAccepted("another replica runs it now")] if len(made) < 5 else []))
        yield made[-1]
        context.has_moved = True

    context = LinkContext(SPEC, Metrics(CollectorRegistry()), lambda change: None)
    link = ReconnectingLink(context, connect, Events(), delays=lambda _: 3600, clock=lambda: 7.0, prepare=ready)
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            while len(made) < 6:
                await link(request("tools/list"))
            assert await link(request("tools/list")) == DONE
            tasks.cancel_scope.cancel()


async def test_no_call_goes_over_a_link_before_it_is_prepared() -> None:
    made, may_go_on = FakeLink(), anyio.Event()
    outcomes: list[Outcome] = []
    published: list[object] = []

    @asynccontextmanager
    async def connect(_: LinkContext) -> AsyncIterator[Link]:
        yield made

    async def prepare(owner: LinkOwner, identity: ServerIdentity, send: Handler) -> None:
        assert (owner, identity) == (None, made.identity)
        outcomes.append(await send(request("logging/setLevel")))
        context.publish(PushChannel.LOST)
        await may_go_on.wait()

    context = LinkContext(SPEC, Metrics(CollectorRegistry()), published.append)
    link = ReconnectingLink(
        context, connect, published.append, delays=lambda _: 3600, clock=lambda: 7.0, prepare=prepare
    )
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            tasks.start_soon(link, request("tools/call"))
            await anyio.wait_all_tasks_blocked()
            assert [call.method for call in made.sent] == ["logging/setLevel"]
            may_go_on.set()
            await anyio.wait_all_tasks_blocked()
            assert [call.method for call in made.sent] == ["logging/setLevel", "tools/call"]
            tasks.cancel_scope.cancel()
    assert outcomes == [DONE]
    assert published[:2] == [Connected("u", None, made.identity), PushChannel.LOST]
