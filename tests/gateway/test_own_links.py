"""The twin of `mcproxy.gateway.own_links`: links of principals and sessions, and how long they are kept."""

from __future__ import annotations

import anyio
import pytest

from mcproxy.call.identity import ANONYMOUS, Principal
from mcproxy.protocol.methods import Kind
from tests.fakes.upstream import FakeUpstream, House, complete, decoded, house, quiet, tool
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

OPTIONS: dict[str, dict[str, object]] = {"a": {"connection": "principal"}}
ANN, BOB = Principal("ann"), Principal("bob")


def asking() -> FakeUpstream:
    it = FakeUpstream("a", tools={})
    it.lists[Kind.TOOLS] = [tool("t")]
    it.answers["tools/call"] = lambda call: complete(content=[])
    it.owner_of = lambda call: call.over or (None if call.caller.principal == ANONYMOUS else call.caller.principal.key)
    return it


async def called(h: House, principal: Principal) -> None:
    decoded(await h.call("tools/call", principal=principal, name="a__t", arguments={}))


async def released(h: House, *keys: str) -> None:
    with anyio.fail_after(GUARD):
        while h["a"].released != list(keys):
            await anyio.lowlevel.checkpoint()


async def test_the_links_of_principals_are_let_go_one_by_one_when_they_are_not_used() -> None:
    async with house(asking(), options=OPTIONS, limits={"session_idle": 100}) as h:
        await h.ready()
        await called(h, ANN)
        h.clock.now += 60
        await called(h, BOB)
        h.clock.now += 60
        await h.sleeper.slept(1)
        h.sleeper.wake()
        await released(h, ANN.key)


async def test_the_link_of_a_principal_stays_while_a_session_of_its_own_listens() -> None:
    async with house(asking(), options=OPTIONS, limits={"session_idle": 100}) as h:
        await h.ready()
        listener = h.listener(principal=ANN)
        await called(h, ANN)
        h.clock.now += 101
        await h.sleeper.slept(1)
        h.sleeper.wake()
        await quiet()
        assert h["a"].released == []
        h.gateway.leave(listener)
        h.clock.now += 101
        await h.sleeper.slept(2)
        h.sleeper.wake()
        await released(h, ANN.key)


async def test_no_link_is_made_for_a_principal_before_it_calls() -> None:
    async with house(asking(), options=OPTIONS) as h:
        await h.ready()
        h.listener(principal=ANN)
        assert await h.listed(Kind.TOOLS, principal=ANN) == ["a__t"]
        await quiet()
        assert {call.over for call in h["a"].calls} == {None}


async def test_r14_a_link_that_is_made_for_a_session_after_its_end_is_let_go_at_once() -> None:
    async with house(FakeUpstream("a", tools={}), options={"a": {"connection": "session"}}) as h:
        await h.ready()
        listener = h.listener(session="s1")
        h["a"].connect("s1")
        assert h["a"].released == []
        h.gateway.leave(listener)
        h["a"].connect("s1")
        assert h["a"].released == ["s1", "s1"]
        h["a"].disconnect("s1")
        assert h["a"].released == ["s1", "s1", "s1"]
