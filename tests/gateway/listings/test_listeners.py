"""The twin of `mcproxy.gateway.listings.listeners`: who may hear which notice, and of which list."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import pytest

from mcproxy.call.clients import ListChanged, Notice
from mcproxy.call.upstreams import Retired
from mcproxy.catalog.views.view import View
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.listeners import MOST_COMPARED, MOST_PAUSES, NEWS_PAUSE, Listeners
from mcproxy.gateway.listings.state import Catalogue, rules_of
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import ELICITATION_COMPLETE, LOG_MESSAGE, Kind
from mcproxy.telemetry.metrics import Metrics
from tests.catalog.views.samples import listing
from tests.fakes.upstream import FakeListener, FakeUpstream, Sleeper, house, quiet, settings_of, tool

pytestmark = pytest.mark.anyio

OWN_LINKS = {"own": {"connection": "session"}}


def line(level: str) -> Notice:
    return Notice(LOG_MESSAGE, {"level": raw(level), "data": raw("x")}, level)


async def test_log_messages_reach_those_whose_level_admits_them() -> None:
    async with house(FakeUpstream("a"), FakeUpstream("b")) as h:
        curious, content, silent, elsewhere = (
            h.listener(level="debug"),
            h.listener("a", level="error"),
            h.listener(),
            h.listener("b", level="debug"),
        )
        h["a"].announce(line("info"))
        h["a"].announce(line("error"))
        assert curious.changes == [line("info"), line("error")]
        assert content.changes == [line("error")]
        assert silent.changes == []
        assert elsewhere.changes == []


async def test_other_notices_reach_all_that_see_the_upstream() -> None:
    notice = Notice(ELICITATION_COMPLETE, {"elicitationId": raw("e")})
    async with house(FakeUpstream("a"), FakeUpstream("b")) as h:
        one, two, other = h.listener(), h.listener("a"), h.listener("b")
        h["a"].announce(notice)
        assert (one.changes, two.changes, other.changes) == ([notice], [notice], [])


async def test_r26_a_notice_on_a_sessions_own_link_is_for_that_session() -> None:
    async with house(FakeUpstream("own"), options=OWN_LINKS) as h:
        one, two, nobody = h.listener(session="s1"), h.listener(session="s2"), h.listener()
        notice = Notice(ELICITATION_COMPLETE, {"elicitationId": raw("e")})
        h["own"].announce(notice, "s1")
        assert (one.changes, two.changes, nobody.changes) == ([notice], [], [])


def offering(name: str) -> FakeUpstream:
    upstream = FakeUpstream(name, tools={})
    upstream.lists[Kind.TOOLS] = [tool("x")]
    return upstream


async def test_r78_others_have_their_turn_between_two_listeners_that_are_told() -> None:
    async with house(offering("a")) as h:
        await h.ready()
        listeners = [h.listener(session=f"s{number}") for number in range(20)]
        await quiet()
        h.gateway.on_event(Retired("a", None))
        told = [0]
        while told[-1] < len(listeners):
            await anyio.lowlevel.checkpoint()
            told.append(sum(listener.changes == [ListChanged(Kind.TOOLS)] for listener in listeners))
        assert max(after - before for before, after in pairwise(told)) == 1


async def test_r19_what_changes_before_a_listener_is_told_is_told_once() -> None:
    async with house(offering("a"), offering("b")) as h:
        await h.ready()
        listener = h.listener()
        await quiet()
        h.gateway.on_event(Retired("a", None))
        h.gateway.on_event(Retired("b", None))
        await quiet()
        assert listener.changes == [ListChanged(Kind.TOOLS)]


async def test_r19_a_change_that_is_undone_before_a_listener_is_told_is_none() -> None:
    async with house(offering("a")) as h:
        await h.ready()
        listener = h.listener()
        await quiet()
        for options in ({"tools": {"exclude": ["x"]}}, {}):
            h.gateway.reconfigure(settings_of({"a": options}), {"a": h["a"]})
        await quiet()
        assert listener.changes == []


async def test_a_listener_that_leaves_before_it_is_told_hears_nothing() -> None:
    async with house(offering("a")) as h:
        await h.ready()
        listener = h.listener()
        await quiet()
        h.gateway.on_event(Retired("a", None))
        h.gateway.leave(listener)
        await quiet()
        assert listener.changes == []


async def test_r52_a_change_that_is_told_after_its_upstream_went_brings_no_series_of_it_back() -> None:
    async with house(offering("a"), offering("b")) as h:
        await h.ready()
        listener = h.listener()
        await quiet()
        h.gateway.on_event(Retired("a", None))
        h.gateway.reconfigure(settings_of({"b": {}}), {"b": h["b"]})
        h.metrics.forget("a")
        await quiet()
        assert listener.changes == [ListChanged(Kind.TOOLS)]
        families = h.metrics.registry.collect()
        assert "a" not in {sample.labels.get("upstream") for family in families for sample in family.samples}


async def test_r19_what_is_known_for_the_first_time_is_told_once_nothing_new_came_for_a_while() -> None:
    async with house(offering("a"), offering("b")) as h:
        listener = h.listener()
        for name in ("a", "b"):
            h[name].connect()
            await quiet()
        for _ in range(2):
            assert listener.changes == []
            h.sleeper.wake()
            await quiet()
        assert listener.changes == [ListChanged(Kind.TOOLS)]
        assert h.sleeper.asked == [NEWS_PAUSE] * 2


async def test_r19_what_is_known_for_the_first_time_is_told_in_the_end_though_new_lists_keep_coming() -> None:
    upstreams = [offering(f"u{number}") for number in range(MOST_PAUSES)]
    async with house(*upstreams) as h:
        listener = h.listener()
        for upstream in upstreams:
            assert listener.changes == []
            upstream.connect()
            await quiet()
            h.sleeper.wake()
            await quiet()
        assert listener.changes == [ListChanged(Kind.TOOLS)]


async def test_r19_another_change_is_told_at_once_with_what_is_new() -> None:
    async with house(offering("a"), offering("b")) as h:
        h["a"].connect()
        await quiet()
        listener = h.listener()
        h["b"].connect()
        await quiet()
        h["a"].list_changed(Kind.TOOLS, [tool("y")])
        await listener.hears(ListChanged(Kind.TOOLS))
        h.sleeper.wake()
        await quiet()
        assert listener.changes == [ListChanged(Kind.TOOLS)]


async def test_r19_a_list_that_a_listener_was_given_is_not_told_as_changed_before() -> None:
    up = FakeUpstream("a", tools={}, prompts={})
    up.lists |= {Kind.TOOLS: [tool("x")], Kind.PROMPTS: [{"name": "p"}]}
    async with house(up) as h:
        listener = h.listener()
        up.connect()
        assert await h.listed(Kind.TOOLS, listener=listener) == ["a__x"]
        for _ in range(2):
            await quiet()
            assert listener.changes == []
            h.sleeper.wake()
        await listener.hears(ListChanged(Kind.PROMPTS))
        assert listener.changes == [ListChanged(Kind.PROMPTS)]


async def test_r19_a_list_that_changes_after_a_listener_was_given_it_is_told_as_changed() -> None:
    async with house(offering("a")) as h:
        listener = h.listener()
        h["a"].connect()
        await h.listed(Kind.TOOLS, listener=listener)
        h["a"].list_changed(Kind.TOOLS, [tool("y")])
        await listener.hears(ListChanged(Kind.TOOLS))


@asynccontextmanager
async def hearing(count: int) -> AsyncIterator[Callable[[str], None]]:
    """So many listeners at an upstream; the function lists another tool there."""
    catalogue = Catalogue(rules_of(settings_of({"up": {}})))
    listeners = Listeners(catalogue, Metrics(), Sleeper())

    def change(name: str) -> None:
        with listeners.telling_list_changes("up"):
            catalogue.known.replace(LinkKey("up", None), Kind.TOOLS, listing(Kind.TOOLS, tool(name)))

    for _ in range(count):
        listeners.join(FakeListener())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listeners.run)
        yield change
        tasks.cancel_scope.cancel()


def views() -> int:
    """How many views there are."""
    gc.collect()
    return sum(isinstance(each, View) for each in gc.get_objects())


async def test_no_earlier_view_is_kept_once_all_were_told() -> None:
    before = views()
    async with hearing(2) as change:
        for name in ("a", "b", "c"):
            change(name)
            await quiet()
            assert views() == before + 1


async def test_r23_changes_that_come_faster_than_all_are_told_are_bounded_memory() -> None:
    before = views()
    async with hearing(3) as change:
        for number in range(10 * MOST_COMPARED):
            change(str(number))
            await anyio.lowlevel.checkpoint()
        assert views() <= before + 3 * MOST_COMPARED
