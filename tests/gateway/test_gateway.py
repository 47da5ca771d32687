"""The twin of `mcproxy.gateway.gateway`: what only the whole of it shows."""

from __future__ import annotations

import pytest

from mcproxy.call.clients import ListChanged, ResourceUpdated
from mcproxy.protocol.methods import ROOTS_CHANGED, Kind
from tests.fakes.upstream import FakeUpstream, complete, decoded, house, quiet, tool

pytestmark = pytest.mark.anyio


async def test_r60_changed_roots_concern_the_sessions_own_links_alone() -> None:
    own, shared = FakeUpstream("own"), FakeUpstream("shared")
    own.answers[ROOTS_CHANGED] = shared.answers[ROOTS_CHANGED] = lambda call: complete()
    async with house(own, shared, options={"own": {"connection": "session"}}) as h:
        await h.ready()
        listener = h.listener(session="s1")
        await own.called("tools/list", 2)
        assert decoded(await h.call(ROOTS_CHANGED, listener=listener)) == {}
        assert [call.caller.session for call in own.calls if call.method == ROOTS_CHANGED] == ["s1"]
        assert shared.count(ROOTS_CHANGED) == 0


async def test_a_link_that_was_never_made_is_not_made_for_changed_roots() -> None:
    own = FakeUpstream("own")
    async with house(own, options={"own": {"connection": "session"}}) as h:
        await h.call(ROOTS_CHANGED, session="s1")
        assert own.calls == []


async def test_r54_sessions_that_come_and_go_leave_nothing_behind() -> None:
    own = FakeUpstream("own")
    own.lists[Kind.TOOLS] = [tool("x")]
    own.answers["resources/subscribe"] = lambda call: complete()
    async with house(own, options={"own": {"connection": "session"}}) as h:
        await h.ready()
        for number in range(50):
            listener = h.listener(session=f"s{number}")
            await h.listed(Kind.TOOLS, listener=listener)
            await h.call("resources/subscribe", listener=listener, uri="own+file:///x")
            h.gateway.leave(listener)
        await quiet()
        assert own.released == [f"s{number}" for number in range(50)]
        last = h.listener(session="last")
        own.announce(ListChanged(Kind.TOOLS), "s1")
        own.announce(ResourceUpdated("file:///x"), "s1")
        assert last.changes == []


async def test_events_of_an_upstream_that_is_not_configured_are_ignored() -> None:
    async with house(FakeUpstream("a")) as h:
        stranger = FakeUpstream("stranger")
        stranger.on_event = h.gateway.on_event
        listener = h.listener(level="debug")
        stranger.connect()
        stranger.announce(ListChanged(Kind.TOOLS))
        stranger.announce(ResourceUpdated("file:///x"))
        stranger.disconnect()
        await quiet()
        assert listener.changes == []
        assert stranger.calls == []
