"""The states of a handshake session: what the real session does at every edge of its table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from mcproxy.call.clients import ListChanged, ResourceUpdated
from mcproxy.call.identity import ANONYMOUS, Principal
from mcproxy.downstream.handshake.conversation import call_or_answer
from mcproxy.downstream.handshake.session import TRANSITIONS, Session, SessionEvent, SessionState
from mcproxy.downstream.handshake.session_ids import Handshake
from mcproxy.downstream.handshake.session_store import SessionStore
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.protocol.jsonrpc import ErrorResponse, Message, Request
from mcproxy.protocol.methods import Kind
from tests.fakes.gateway import FakeGateway, edge_of

pytestmark = pytest.mark.anyio

EVENTS: dict[SessionEvent, Callable[[Session], None]] = {
    SessionEvent.DRAIN: Session.drain,
    SessionEvent.GRACE_OVER: Session.cut_off,
    SessionEvent.END: Session.end,
}
"""What brings each event about."""

WAYS: dict[SessionState, list[SessionEvent]] = {
    SessionState.OPEN: [],
    SessionState.DRAINING: [SessionEvent.DRAIN],
    SessionState.CUT_OFF: [SessionEvent.DRAIN, SessionEvent.GRACE_OVER],
    SessionState.ENDED: [SessionEvent.END],
}
"""The events that lead to each state."""

EDGES = [(state, event, after) for state, row in TRANSITIONS.items() for event, after in row.items()]
IMPOSSIBLE = [(state, event) for state, row in TRANSITIONS.items() for event in SessionEvent if event not in row]


class RunningCall:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Sent:
    """An outlet that remembers what a request was answered."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, message: Message) -> None:
        self.messages.append(message)

    def finish(self) -> None:
        return


@dataclass
class Driven:
    """A real session with one call in flight and one stream open, and what becomes of both."""

    context: TransportContext
    session: Session
    call: RunningCall
    stream: SendBuffer

    def to(self, state: SessionState) -> None:
        for event in WAYS[state]:
            EVENTS[event](self.session)
        assert self.session.state is state


@asynccontextmanager
async def driven() -> AsyncIterator[Driven]:
    async with edge_of(FakeGateway()) as context:
        session = SessionStore(context).open("http", ANONYMOUS, "", Handshake("2025-11-25"))
        stream, call = SendBuffer(context.proxy.limits), RunningCall()
        session.streams.listening.attach(stream)
        session.begin(1, call)
        yield Driven(context, session, call, stream)


async def test_r39_a_lesser_request_is_told_nothing_that_was_for_a_better_one_before_it() -> None:
    ann = Principal("ann", frozenset({"ops"}))
    lists, update = ListChanged(Kind.TOOLS), ResourceUpdated("memo:secret")
    async with edge_of(FakeGateway()) as context:
        session = SessionStore(context).open("http", ann, "", Handshake("2025-11-25"))
        session.signal(update)
        session.send_changes()
        for change in (lists, update):
            session.signal(change)
        session.authenticated_as(replace(ann, roles=frozenset({"ops", "dev"})))
        assert len(session.changes) == 2
        session.authenticated_as(replace(ann, roles=frozenset({"dev"})))
        assert session.changes.take() == [lists]
        stream = SendBuffer(context.proxy.limits)
        session.streams.listening.attach(stream, after=0)
        assert not stream.take()


@pytest.mark.parametrize(("state", "event", "after"), EDGES, ids=lambda each: each.name)
async def test_every_edge_leads_where_the_table_says(
    state: SessionState, event: SessionEvent, after: SessionState
) -> None:
    async with driven() as d:
        d.to(state)
        EVENTS[event](d.session)
        assert d.session.state is after


@pytest.mark.parametrize(("state", "event"), IMPOSSIBLE, ids=lambda each: each.name)
async def test_an_event_without_an_edge_changes_nothing_and_is_a_bug(state: SessionState, event: SessionEvent) -> None:
    async with driven() as d:
        d.to(state)
        cancelled, closed = d.call.cancelled, d.stream.closed
        with pytest.raises(KeyError):
            EVENTS[event](d.session)
        assert (d.session.state, d.call.cancelled, d.stream.closed) == (state, cancelled, closed)


@pytest.mark.parametrize("state", SessionState)
async def test_an_open_session_alone_takes_calls(state: SessionState) -> None:
    async with driven() as d:
        d.to(state)
        sent = Sent()
        call = call_or_answer(d.context, d.session, Request(2, "tools/list"), sent)
        assert (call is not None) == (state is SessionState.OPEN)
        assert [isinstance(message, ErrorResponse) for message in sent.messages] == [True] * (call is None)


async def test_draining_closes_the_stream_once_the_last_call_is_over() -> None:
    async with driven() as d:
        d.to(SessionState.DRAINING)
        assert (d.call.cancelled, d.stream.closed) == (False, False)
        d.session.finish(1)
        assert d.stream.closed


async def test_draining_an_idle_session_closes_its_stream_at_once() -> None:
    async with driven() as d:
        d.session.finish(1)
        assert not d.stream.closed
        d.session.drain()
        assert d.stream.closed


async def test_cutting_off_cancels_the_calls_and_leaves_the_stream_for_their_answers() -> None:
    async with driven() as d:
        d.to(SessionState.CUT_OFF)
        assert d.call.cancelled
        assert not d.stream.closed


@pytest.mark.parametrize("state", [state for state in SessionState if state is not SessionState.ENDED])
async def test_the_end_cancels_the_calls_and_closes_the_stream_from_every_state(state: SessionState) -> None:
    async with driven() as d:
        d.to(state)
        d.session.end()
        assert d.call.cancelled
        assert d.stream.closed
