"""The twin of `mcproxy.gateway.log_levels`: which log level each upstream is set to."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from msgspec.structs import replace

from mcproxy.call.calls import Call, Outcome
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.protocol.eras import LATEST, Era
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import SET_LEVEL, Kind, row_of
from tests.fakes.upstream import (
    FakeClient,
    FakeListener,
    FakeUpstream,
    House,
    complete,
    decoded,
    error,
    failed,
    house,
    quiet,
    text_of,
    tool,
)
from tests.steps import functions_called
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def logging(name: str = "a") -> FakeUpstream:
    upstream = FakeUpstream(name, logging={})
    upstream.answers[SET_LEVEL] = lambda call: complete()
    return upstream


async def set_level(h: House, listener: FakeListener, level: object) -> Outcome:
    return await h.call(SET_LEVEL, listener=listener, level=level)


def levels(upstream: FakeUpstream) -> list[str]:
    return [text_of(call.params["level"]) for call in upstream.calls if call.method == SET_LEVEL]


async def test_the_answer_comes_when_upstreams_know() -> None:
    async with house(logging(), logging("b"), FakeUpstream("silent", tools={})) as h:
        await h.ready()
        listener = h.listener()
        assert decoded(await set_level(h, listener, "debug")) == {}
        assert listener.caller.log_level == "debug"
        assert [levels(h[name]) for name in ("a", "b", "silent")] == [["debug"], ["debug"], []]


async def test_the_most_verbose_level_that_anybody_wants_is_set() -> None:
    async with house(logging()) as h:
        await h.ready()
        one, two = h.listener(), h.listener(level="info")
        await set_level(h, one, "error")
        await set_level(h, two, "debug")
        await set_level(h, two, "notice")
        assert levels(h["a"]) == ["info", "debug", "notice"]
        h.gateway.leave(two)
        await h["a"].called(SET_LEVEL, 4)
        assert levels(h["a"])[-1] == "error"


async def test_nothing_is_set_until_a_client_names_a_level() -> None:
    async with house(logging()) as h:
        await h.ready()
        h.listener(level="info")
        h["a"].disconnect()
        h["a"].connect()
        await quiet()
        assert levels(h["a"]) == []


async def test_the_level_is_set_again_after_a_reconnect() -> None:
    async with house(logging()) as h:
        await h.ready()
        await set_level(h, h.listener(), "debug")
        h["a"].disconnect()
        h["a"].connect()
        await h["a"].called(SET_LEVEL, 2)
        assert levels(h["a"]) == ["debug", "debug"]


@pytest.mark.parametrize("level", ["loud", "", None, 3, "DEBUG"])
async def test_a_level_that_is_none_is_refused(level: object) -> None:
    async with house(logging()) as h:
        await h.ready()
        listener = h.listener()
        assert error(await set_level(h, listener, level)).code == -32602
        assert listener.caller.log_level is None


async def test_r1_an_upstream_that_does_not_answer_holds_no_other_up() -> None:
    async with house(logging(), list_wait=0.01) as h:
        await h.ready()
        h["a"].gate.shut()
        assert decoded(await set_level(h, h.listener(), "debug")) == {}


async def test_an_upstream_that_takes_no_level_is_no_error() -> None:
    async with house(logging()) as h:
        await h.ready()
        h["a"].answers[SET_LEVEL] = lambda call: failed("no")
        assert decoded(await set_level(h, h.listener(), "debug")) == {}


async def test_the_level_outlives_no_session_that_named_it() -> None:
    async with house(logging()) as h:
        await h.ready()
        one = h.listener()
        await set_level(h, one, "error")
        h.gateway.leave(one)
        await h["a"].called(SET_LEVEL, 2)
        assert levels(h["a"]) == ["error", "info"]


async def log(h: House, level: str | None) -> Outcome:
    """A call of a stateless client that wants log messages."""
    caller = Caller(ANONYMOUS, LATEST, log_level=level)
    with anyio.fail_after(GUARD):
        return await h.gateway.handler(Call(row_of("tools/call"), {"name": raw("a__run")}, caller, FakeClient()))


def running(**capabilities: object) -> FakeUpstream:
    upstream = FakeUpstream("a", tools={}, **capabilities)
    upstream.answers[SET_LEVEL] = lambda call: complete()
    upstream.lists[Kind.TOOLS] = [tool("run")]
    upstream.answers["tools/call"] = lambda call: complete(content=[])
    return upstream


async def test_a_server_that_logs_nothing_unasked_is_asked_for_the_level_of_a_stateless_call() -> None:
    upstream = running(logging={})
    async with house(upstream) as h:
        await h.ready()
        await log(h, "debug")
        await log(h, "debug")
        await log(h, "error")
        assert levels(upstream) == ["debug"]
        assert [call.method for call in upstream.calls][-4:] == [SET_LEVEL, *["tools/call"] * 3]


async def test_the_level_of_a_stateless_call_is_set_again_over_the_connection_that_it_gets() -> None:
    upstream = running(logging={})
    async with house(upstream) as h:
        await h.ready()
        await log(h, "debug")
        upstream.disconnect()
        upstream.connect()
        await upstream.called(SET_LEVEL, 2)
        assert levels(upstream) == ["debug", "debug"]


async def test_the_level_of_a_stateless_call_silences_no_client_that_names_none() -> None:
    upstream = running(logging={})
    async with house(upstream) as h:
        await h.ready()
        h.listener()
        await log(h, "error")
        assert levels(upstream) == ["info"]


async def test_a_server_that_takes_no_level_is_asked_once_by_stateless_calls() -> None:
    upstream = running(logging={})
    upstream.answers[SET_LEVEL] = lambda call: failed("no")
    async with house(upstream) as h:
        await h.ready()
        for _ in range(3):
            await log(h, "info")
        assert levels(upstream) == ["info"]


async def test_a_server_without_logging_is_asked_for_no_level() -> None:
    upstream = running()
    async with house(upstream) as h:
        await h.ready()
        await log(h, "info")
        assert levels(upstream) == []


async def test_the_level_of_a_session_silences_no_stateless_client() -> None:
    upstream = running(logging={})
    async with house(upstream) as h:
        await h.ready()
        await set_level(h, h.listener(), "error")
        await log(h, "critical")
        await log(h, None)
        assert levels(upstream) == ["error"]
        await log(h, "notice")
        await log(h, "warning")
        assert levels(upstream) == ["error", "notice"]
        assert [call.method for call in upstream.calls][-3:] == [SET_LEVEL, "tools/call", "tools/call"]


async def test_a_stateless_upstream_is_told_for_the_link_that_it_may_have_in_the_handshake_era() -> None:
    async with house(logging()) as h:
        h["a"].identity = replace(h["a"].identity, era=Era.STATELESS)
        await h.ready()
        await set_level(h, h.listener(), "debug")
        assert levels(h["a"]) == ["debug"]


async def test_a_sessions_own_link_logs_as_that_session_wants() -> None:
    own = logging("own")
    async with house(own, options={"own": {"connection": "session"}}) as h:
        one, two = h.listener(session="s1"), h.listener(session="s2")
        own.connect("s1")
        own.connect("s2")
        await set_level(h, one, "debug")
        await set_level(h, two, "error")
        sent = [(call.caller.session, text_of(call.params["level"])) for call in own.calls if call.method == SET_LEVEL]
        assert sent == [("s1", "debug"), ("s2", "error")]


async def test_r78_a_client_that_leaves_is_no_more_work_where_there_are_many() -> None:
    work = []
    for many in (2, 200):
        async with house(logging(), logging("b")) as h:
            await h.ready()
            listeners = [h.listener() for _ in range(many)]
            for listener in listeners:
                await set_level(h, listener, "debug")
            work.append(functions_called(partial(h.gateway.leave, listeners[-1])))
    assert work[1] < 2 * work[0]
