"""A conversation over one duplex, whatever the client sends."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.call.identity import AGGREGATE, ANONYMOUS
from mcproxy.downstream.handshake.session_ids import Handshake, UnknownSession
from mcproxy.downstream.handshake.session_store import SessionStore
from mcproxy.downstream.handshake.stdio import HandshakePipe
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.inbound import read_inbound
from mcproxy.protocol.jsonrpc import InvalidMessage
from mcproxy.protocol.methods import CANCELLED, INITIALIZED, METHODS, PROGRESS
from mcproxy.settings import LimitSettings
from tests.depth import examples
from tests.downstream.client import initialize, request
from tests.fakes.gateway import FakeGateway, edge_of, quick
from tests.timeouts import GUARD

values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
members = st.fixed_dictionaries(
    {},
    optional={
        "requestId": values,
        "level": values,
        "protocolVersion": st.sampled_from(["2025-03-26", "2025-11-25"]) | values,
        "capabilities": values,
        "clientInfo": values,
        "_meta": st.fixed_dictionaries({}, optional={"progressToken": values, "x": values}) | values,
    },
)
messages = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | values},
    optional={
        "id": st.integers(0, 3) | st.sampled_from(["0", "1"]) | values,
        "method": st.sampled_from([*METHODS, INITIALIZED, CANCELLED, PROGRESS]) | values,
        "params": members | values,
        "result": values,
        "error": values,
    },
)
anything = messages | values | st.lists(messages, max_size=3)


async def converse(sent: list[Any]) -> list[Any]:
    async with edge_of(FakeGateway()) as context:
        sessions = SessionStore(context)
        pipe = HandshakePipe(context, sessions, "stdio", ANONYMOUS, AGGREGATE, lambda message: message + b"\n")
        for message in sent:
            try:
                await pipe.receive(read_inbound(json.dumps(message).encode()))
            except InvalidMessage:
                continue
        if pipe.session is not None:
            with anyio.fail_after(GUARD):
                await pipe.session.wait_idle()
        received = pipe.send_buffer.take()
        pipe.end()
        assert len(sessions) == 0
    return [json.loads(line) for line in received.splitlines()]


async def come_and_go(context: TransportContext, sessions: SessionStore) -> None:
    pipe = HandshakePipe(context, sessions, "sse", ANONYMOUS, AGGREGATE, lambda message: message)
    await pipe.receive(read_inbound(json.dumps(initialize()).encode()))
    assert pipe.session is not None
    pipe.end()


@pytest.mark.anyio
async def test_r56_pipes_that_come_and_go_bring_back_no_session_that_was_ended() -> None:
    async with edge_of(FakeGateway(), quick(LimitSettings(max_sessions=2))) as context:
        sessions = SessionStore(context)
        ended = sessions.open("http", ANONYMOUS, AGGREGATE, Handshake("2025-11-25"))
        sessions.end(ended)
        for _ in range(5):
            await come_and_go(context, sessions)
        with pytest.raises(UnknownSession):
            sessions.find(ended.id, "http", ANONYMOUS, AGGREGATE)


@settings(max_examples=examples(150))
@given(st.lists(anything, max_size=8))
def test_whatever_is_sent_the_conversation_goes_on(sent: list[Any]) -> None:
    received = anyio.run(converse, [*sent, initialize(), request("last", "ping")])
    (last,) = [answer for answer in received if isinstance(answer, dict) and answer.get("id") == "last"]
    assert last["result"] == {}


@settings(max_examples=examples(50))
@given(st.lists(st.sampled_from(sorted(METHODS)), max_size=20))
def test_every_request_is_answered_once(methods: list[str]) -> None:
    sent = [initialize(), *(request(id, method) for id, method in enumerate(methods, 1))]
    received = anyio.run(converse, sent)
    assert sorted(answer["id"] for answer in received) == list(range(len(sent)))
