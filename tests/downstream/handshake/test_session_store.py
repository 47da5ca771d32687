"""How many sessions there may be, how long they last, and what their ids hold."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcproxy.call.clients import InputRequest, ListChanged, Notice
from mcproxy.call.errors import McpError
from mcproxy.call.identity import ANONYMOUS, Principal
from mcproxy.downstream.handshake.session import Session
from mcproxy.downstream.handshake.session_ids import (
    MAX_LENGTH,
    Handshake,
    SessionIdPayload,
    UnknownSession,
    sign,
    verify,
)
from mcproxy.downstream.handshake.session_store import SessionStore, TooManySessions
from mcproxy.downstream.io.pending_changes import as_notification
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from mcproxy.sealing import Sealer
from mcproxy.settings import LimitSettings
from tests.fakes.gateway import FakeGateway, edge_of, quick

pytestmark = pytest.mark.anyio

OPENING = Handshake("2025-06-18", {"roots": raw({})}, raw({"name": "c", "version": "1"}))
KEY = "00" * 16


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Store:
    """A store of sessions whose time a test commands."""

    def __init__(self, sessions: SessionStore, gateway: FakeGateway, clock: Clock) -> None:
        self.sessions = sessions
        self.gateway = gateway
        self.clock = clock

    def open(self, name: str = "ann") -> Session:
        return self.sessions.open("http", Principal(name), "", OPENING)

    def find(self, id: str, name: str = "ann", endpoint: str = "") -> Session:
        return self.sessions.find(id, "http", Principal(name), endpoint)


@asynccontextmanager
async def store(**limits: float) -> AsyncIterator[Store]:
    gateway, clock = FakeGateway(), Clock()
    async with edge_of(gateway, quick(LimitSettings.model_validate(limits))) as context:
        yield Store(SessionStore(context, clock=clock, wall=clock), gateway, clock)


async def test_a_live_session_is_found_by_its_id() -> None:
    async with store() as s:
        session = s.open()
        assert s.find(session.id) is session
        assert session.caller.transport == session.transport == "http"
        assert s.gateway.present == [session]


async def test_r39_an_id_is_good_for_its_principal_and_endpoint_alone() -> None:
    async with store() as s:
        session = s.open()
        with pytest.raises(UnknownSession):
            s.find(session.id, "bob")
        with pytest.raises(UnknownSession):
            s.find(session.id, endpoint="up")


async def test_r39_an_id_that_its_owner_has_used_is_good_for_no_other() -> None:
    async with store() as s:
        session = s.open()
        s.find(session.id)
        with pytest.raises(UnknownSession):
            s.find(session.id, "bob")
        with pytest.raises(UnknownSession):
            s.find(session.id, endpoint="up")


async def test_an_id_that_its_owner_has_used_is_unknown_once_the_session_ended_or_is_too_old() -> None:
    async with store(session_lifetime=100, session_idle=90) as s:
        ended, old = s.open(), s.open()
        s.find(ended.id)
        s.find(old.id)
        s.sessions.end(ended)
        s.clock.now += 101
        for session in (ended, old):
            with pytest.raises(UnknownSession):
                s.find(session.id)


async def test_roles_are_those_of_the_latest_request() -> None:
    async with store() as s:
        session = s.open()
        s.sessions.find(session.id, "http", Principal("ann", frozenset({"admin"})), "")
        assert session.caller.principal.roles == {"admin"}


async def test_a_session_joins_again_where_other_roles_may_open_other_servers_to_it() -> None:
    async with store() as s:
        session = s.open()
        joined = len(s.gateway.joined)
        s.sessions.find(session.id, "http", Principal("ann", frozenset({"admin"})), "")
        assert s.gateway.joined[joined:] == [session]
        s.sessions.find(session.id, "http", Principal("ann", frozenset({"admin"}), attributes=(("token", "2"),)), "")
        assert s.gateway.joined[joined:] == [session]


async def test_r54_idle_sessions_go_and_busy_ones_stay() -> None:
    async with store(session_idle=10) as s:
        idle, calling, listening = s.open(), s.open(), s.open()
        calling.begin(1, anyio.CancelScope())
        s.sessions.stream_opened(listening)
        s.clock.now += 11
        s.sessions.expire()
        assert s.gateway.left == [idle]
        s.sessions.stream_closed(listening)
        calling.finish(1)


async def test_r56_an_expired_session_is_opened_again_for_its_client() -> None:
    async with store(session_idle=10) as s:
        old = s.open()
        s.clock.now += 11
        s.sessions.expire()
        again = s.find(old.id)
        assert again is not old
        assert (again.id, again.caller) == (old.id, old.caller)
        assert s.gateway.present == [again]


async def test_r56_an_ended_session_is_not() -> None:
    async with store() as s:
        session = s.open()
        s.sessions.end(session)
        s.sessions.end(session)
        with pytest.raises(UnknownSession):
            s.find(session.id)
        assert s.gateway.left == [session]


async def test_r56_an_ended_session_stays_so_however_many_others_end() -> None:
    async with store(max_sessions=10) as s:
        ended = s.open("bob")
        s.sessions.end(ended)
        s.clock.now += 1
        for _ in range(30):
            s.sessions.end(s.open())
        with pytest.raises(UnknownSession):
            s.find(ended.id, "bob")
        s.clock.now += 1
        later = s.open("bob")
        s.sessions.leave(later)
        assert s.find(later.id, "bob").id == later.id


async def test_r56_an_ended_session_stays_so_however_many_unseen_ones_come_and_go() -> None:
    async with store(max_sessions=3) as s:
        ended = s.open()
        s.sessions.end(ended)
        for _ in range(10):
            s.sessions.leave(s.open())
        with pytest.raises(UnknownSession):
            s.find(ended.id)


async def test_a_session_is_left_idle_once_its_calls_are_over_and_its_id_opens_it_again() -> None:
    async with store() as s:
        session = s.open()
        session.begin(1, anyio.CancelScope())
        assert not s.sessions.leave_idle(session)
        assert s.sessions.live() == [session]
        session.finish(1)
        assert s.sessions.leave_idle(session)
        again = s.find(session.id)
        assert again is not session
        assert s.sessions.leave_idle(session), "it is gone, and the one that took its place stays"
        assert s.sessions.live() == [again]


async def test_ids_have_a_lifetime() -> None:
    async with store(session_lifetime=100) as s:
        session = s.open()
        s.clock.now += 101
        with pytest.raises(UnknownSession):
            s.find(session.id)


async def test_r54_newcomers_are_refused_where_there_is_no_room() -> None:
    async with store(max_sessions=3, max_sessions_per_principal=2) as s:
        s.open("ann")
        s.open("ann")
        with pytest.raises(TooManySessions, match="max_sessions_per_principal"):
            s.open("ann")
        s.open("bob")
        with pytest.raises(TooManySessions, match=r"limits\.max_sessions\)"):
            s.open("cid")


async def test_r54_room_is_made_of_idle_sessions() -> None:
    async with store(max_sessions=1, session_idle=10) as s:
        s.open()
        s.clock.now += 11
        assert s.open("bob") in s.gateway.present


async def test_a_session_that_is_gone_leaves_room_for_its_principal() -> None:
    async with store(max_sessions_per_principal=1) as s:
        for _ in range(3):
            s.sessions.end(s.open())
        assert len(s.sessions) == 0


async def test_r54_the_events_that_the_sessions_of_one_caller_keep_to_be_resumed_are_bounded_together() -> None:
    async with store(replay_bytes_per_principal=150_000) as s:
        sent = []
        for name in ("bob", "ann", "ann", "ann"):
            session = s.open(name)
            stream = session.streams.open(session.caller.rights)
            stream.put(b"x" * 100_000, droppable=False)
            sent.append((session, stream))
        kept = []
        for _, stream in sent:
            connection = SendBuffer(LimitSettings())
            stream.attach(connection, after=0)
            kept.append(len(connection.take()) >= 100_000)
        assert kept == [True, False, False, True]


async def test_no_session_opens_once_the_gateway_drains() -> None:
    async with store() as s:
        s.sessions.drain()
        with pytest.raises(McpError, match="shutting down"):
            s.open()


async def test_notices_are_filtered_by_level_as_it_is_when_they_come() -> None:
    async with store() as s:
        session = s.open()
        session.signal(Notice("notifications/message", {"n": raw(1)}, "debug"))
        session.set_log_level("debug")
        session.signal(Notice("notifications/message", {"n": raw(2)}, "debug"))
        session.signal(Notice("notifications/elicitation/complete", {}))
        assert [as_notification(change).method for change in session.changes.take()] == [
            "notifications/message",
            "notifications/elicitation/complete",
        ]


async def test_r23_signals_to_a_client_that_does_not_listen_are_bounded() -> None:
    async with store(max_queued_messages=10) as s:
        session = s.open()
        for number in range(1000):
            session.signal(ListChanged(Kind.TOOLS))
            session.signal(Notice("notifications/message", {"n": raw(number)}, "error"))
        assert len(session.changes) == 11


async def test_a_session_without_a_stream_cannot_be_asked() -> None:
    async with store() as s:
        with pytest.raises(McpError, match="no stream"):
            await s.open().ask(InputRequest("roots/list", {}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=200),
    lambda values: st.lists(values, max_size=5) | st.dictionaries(st.text(max_size=50), values, max_size=5),
    max_leaves=30,
)


@given(
    principal=st.text(max_size=300),
    endpoint=st.text(max_size=100),
    capabilities=st.dictionaries(st.sampled_from(["sampling", "elicitation", "roots", "x", "y"]), json_values),
    info=json_values,
)
def test_r56_ids_are_short_visible_ascii_and_hold_what_matters(
    principal: str, endpoint: str, capabilities: dict[str, object], info: object
) -> None:
    sealer = Sealer(b"s")
    handshake = Handshake("2025-11-25", {key: raw(value) for key, value in capabilities.items()}, raw(info))
    id = sign(sealer, Principal(principal), endpoint, SessionIdPayload(KEY, 7, handshake))
    assert len(id) <= MAX_LENGTH
    assert all(0x21 <= ord(character) <= 0x7E for character in id)
    payload = verify(sealer, Principal(principal), endpoint, id)
    assert (payload.key, payload.issued, payload.handshake.version) == (KEY, 7, "2025-11-25")
    for name in {"sampling", "elicitation", "roots"} & set(capabilities):
        assert name in payload.handshake.capabilities


def test_what_is_too_bulky_is_left_out_and_what_we_act_on_stays() -> None:
    noise = json.dumps([str(hash((n, "x"))) for n in range(1000)]).encode()
    capabilities = {"elicitation": raw({"url": {}, "form": {}, "x": Raw(noise)}), "experimental": Raw(noise)}
    info = raw({"name": "host", "version": "1", "icons": Raw(noise)})
    sealer = Sealer(b"s")
    id = sign(sealer, ANONYMOUS, "", SessionIdPayload(KEY, 0, Handshake("2025-11-25", capabilities, info)))
    handshake = verify(sealer, ANONYMOUS, "", id).handshake
    assert set(handshake.capabilities) == {"elicitation"}
    assert json.loads(bytes(handshake.capabilities["elicitation"])) == {"url": {}, "form": {}}
    assert handshake.info is not None
    assert json.loads(bytes(handshake.info)) == {"name": "host", "version": "1"}


@given(st.text())
def test_no_made_up_id_opens(id: str) -> None:
    with pytest.raises(UnknownSession):
        verify(Sealer(b"s"), ANONYMOUS, "", id)


async def test_r54_one_anonymous_address_takes_the_sessions_of_no_other() -> None:
    near, far = (replace(ANONYMOUS, address=address) for address in ("203.0.113.7", "203.0.113.8"))
    async with store(max_sessions=3, max_sessions_per_principal=2) as s:
        first, _ = (s.sessions.open("http", near, "", OPENING) for _ in range(2))
        with pytest.raises(TooManySessions, match="all your 2"):
            s.sessions.open("http", near, "", OPENING)
        s.sessions.open("http", far, "", OPENING)
        # A client that moves to another network has its session, which counts where it was opened.
        assert s.sessions.find(first.id, "http", far, "") is first
        s.sessions.end(first)
        s.sessions.open("http", near, "", OPENING)
        with pytest.raises(TooManySessions, match=r"limits\.max_sessions\)"):
            s.sessions.open("http", far, "", OPENING)


async def test_r54_anonymous_callers_share_all_sessions() -> None:
    async with store(max_sessions=3, max_sessions_per_principal=1) as s:
        for _ in range(3):
            s.open("anonymous")
        with pytest.raises(TooManySessions, match=r"limits\.max_sessions\)"):
            s.open("anonymous")


async def test_a_session_that_subscribed_and_was_idle_for_too_long_is_unknown_and_not_opened_without() -> None:
    async with store(session_idle=10) as s:
        subscribed = s.open()
        subscribed.subscribed = True
        s.clock.now += 11
        s.sessions.expire()
        with pytest.raises(UnknownSession):
            s.find(subscribed.id)
