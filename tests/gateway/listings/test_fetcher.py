"""The twin of `mcproxy.gateway.listings.fetcher`: what is fetched when, and who hears of it."""

from __future__ import annotations

import anyio
import pytest
from structlog.testing import capture_logs

from mcproxy.call.calls import Complete
from mcproxy.call.clients import ListChanged
from mcproxy.call.errors import Reason
from mcproxy.call.upstreams import LinkState, PushChannel, Retired, UnannouncedLists
from mcproxy.gateway.gateway import Gateway
from mcproxy.gateway.listings.list_reports import MAX_NAMED
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from mcproxy.sealing import Sealer
from mcproxy.telemetry.metrics import Metrics
from tests.fakes.upstream import (
    FakeListener,
    FakeUpstream,
    complete,
    error,
    failed,
    house,
    quiet,
    resource,
    settings_of,
    tool,
)

pytestmark = pytest.mark.anyio

TOOLS_CHANGED = ListChanged(Kind.TOOLS)
OWN_LINKS = {"own": {"connection": "session"}}


def offering(name: str, *tools: str) -> FakeUpstream:
    upstream = FakeUpstream(name, tools={})
    upstream.lists[Kind.TOOLS] = [tool(each) for each in tools]
    return upstream


async def test_only_announced_lists_are_fetched_on_connecting() -> None:
    up = FakeUpstream("a", tools={}, resources={})
    async with house(up) as h:
        await h.ready()
        assert sorted(call.method for call in up.calls) == ["resources/list", "resources/templates/list", "tools/list"]


async def test_r1_a_late_arrival_fires_list_changed() -> None:
    async with house(offering("a", "x"), offering("b", "y")) as h:
        listener = h.listener()
        for times, name in enumerate(("a", "b"), 1):
            h[name].connect()
            for _ in range(2):
                await quiet()
                h.sleeper.wake()
            await listener.hears(TOOLS_CHANGED, times)
        assert h.names(Kind.TOOLS) == ["a__x", "b__y"]


async def test_r19_a_list_that_did_not_change_is_not_announced() -> None:
    async with house(offering("a", "x")) as h:
        await h.ready()
        listener = h.listener()
        h["a"].announce(TOOLS_CHANGED)
        await h["a"].called("tools/list", 2)
        await quiet()
        assert listener.changes == []


async def test_r19_a_list_that_a_restarted_server_only_writes_otherwise_is_not_announced() -> None:
    async with house(offering("a", "x")) as h:
        await h.ready()
        listener = h.listener()
        h["a"].disconnect()
        h["a"].lists[Kind.TOOLS] = [dict(reversed(tool("x").items()))]
        h["a"].connect()
        await h["a"].called("tools/list", 2)
        await quiet()
        assert listener.changes == []


async def test_r19_a_change_is_told_to_those_alone_who_see_it() -> None:
    async with house(offering("a", "x"), offering("b", "y")) as h:
        await h.ready()
        everything, only_a, only_b = h.listener(), h.listener("a"), h.listener("b")
        h["a"].list_changed(Kind.TOOLS, [tool("x"), tool("z")])
        await everything.hears(TOOLS_CHANGED)
        await only_a.hears(TOOLS_CHANGED)
        assert only_b.changes == []


async def test_r19_a_change_of_what_is_filtered_away_is_not_announced() -> None:
    async with house(offering("a", "x"), options={"a": {"tools": {"exclude": ["z*"]}}}) as h:
        await h.ready()
        listener = h.listener()
        h["a"].list_changed(Kind.TOOLS, [tool("x"), tool("z1")])
        await h["a"].called("tools/list", 2)
        await quiet()
        assert listener.changes == []


async def test_r19_a_storm_is_two_fetches_and_ends_with_the_last_state() -> None:
    async with house(offering("a", "x")) as h:
        await h.ready()
        listener = h.listener()
        h["a"].gate.shut()
        h["a"].announce(TOOLS_CHANGED)
        await h["a"].gate.holds(1)
        for number in range(200):
            h["a"].list_changed(Kind.TOOLS, [tool(f"t{number}")])
        h["a"].gate.open()
        await quiet()
        h.sleeper.wake()
        await h["a"].called("tools/list", 3)
        await listener.hears(TOOLS_CHANGED)
        await quiet()
        assert h["a"].count("tools/list") == 1 + 2
        assert h.names(Kind.TOOLS) == ["a__t199"]


async def test_r78_a_long_list_that_changed_holds_up_nothing_and_is_seen_as_a_whole() -> None:
    names = [f"t{number}" for number in range(1000)]
    async with house(offering("a", *names)) as h:
        await h.ready()
        listener, seen, turns = h.listener(), list[set[object]](), 0
        h["a"].list_changed(Kind.TOOLS, [tool(name, title="new") for name in names])
        await h["a"].called("tools/list", 2)
        while not listener.changes:
            shown = h.gateway.catalogue().lists[Kind.TOOLS]
            seen.append({b'"new"' in bytes(each.entry) for each in shown})
            turns += 1
            await anyio.lowlevel.checkpoint()
        assert turns > 20
        assert all(each in ({False}, {True}) for each in seen)
        assert {b'"new"' in bytes(each.entry) for each in h.gateway.catalogue().lists[Kind.TOOLS]} == {True}


async def test_a_list_that_is_still_worked_out_when_its_link_goes_down_is_not_taken() -> None:
    names = [f"t{number}" for number in range(1000)]
    async with house(offering("a", *names)) as h:
        await h.ready()
        h["a"].list_changed(Kind.TOOLS, [tool(name, title="new") for name in names])
        await h["a"].called("tools/list", 2)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        h["a"].disconnect()
        for _ in range(300):
            await anyio.lowlevel.checkpoint()
        assert {b'"new"' in bytes(each.entry) for each in h.gateway.catalogue().lists[Kind.TOOLS]} == {False}


@pytest.mark.parametrize("turns", [0, 5, 30])
async def test_r35_a_list_of_a_connection_that_another_follows_meanwhile_is_not_taken(turns: int) -> None:
    """A list of 1,000 tools is read in ten turns, and worked out in forty."""
    async with house(offering("a", *map(str, range(1000)))) as h:
        await h.ready()
        h["a"].list_changed(Kind.TOOLS, [tool(f"t{number}") for number in range(1000)])
        await h["a"].called("tools/list", 2)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        h["a"].disconnect()
        h["a"].identity = FakeUpstream("a", prompts={}).identity
        h["a"].connect()
        for _ in range(300):
            await anyio.lowlevel.checkpoint()
        assert h.names(Kind.TOOLS) == []


@pytest.mark.parametrize("turns", [0, 5, 30])
async def test_r49_an_upstream_may_be_removed_while_its_list_is_worked_out(turns: int) -> None:
    async with house(offering("a", *map(str, range(1000))), offering("b", "x")) as h:
        await h.ready()
        h["a"].list_changed(Kind.TOOLS, [tool(f"t{number}") for number in range(1000)])
        await h["a"].called("tools/list", 2)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        h.gateway.reconfigure(settings_of({"b": {}}), {"b": h["b"]})
        for _ in range(300):
            await anyio.lowlevel.checkpoint()
        assert h.names(Kind.TOOLS) == ["b__x"]


async def test_r19_what_an_upstream_would_have_told_of_is_fetched_when_it_is_heard_again() -> None:
    up = FakeUpstream("a", tools={"listChanged": True}, prompts={})
    async with house(up) as h:
        await h.ready()
        listener = h.listener()
        up.lists[Kind.TOOLS] = [tool("new")]
        up.announce(PushChannel.RESTORED)
        await listener.hears(ListChanged(Kind.TOOLS))
        assert h.names(Kind.TOOLS) == ["a__new"]
        assert (up.count("tools/list"), up.count("prompts/list")) == (2, 1)


async def test_r19_serving_a_list_fetches_and_announces_nothing() -> None:
    async with house(offering("a", "x")) as h:
        await h.ready()
        listener = h.listener()
        before = len(h["a"].calls)
        assert await h.listed(Kind.TOOLS) == ["a__x"]
        await quiet()
        assert (len(h["a"].calls), listener.changes) == (before, [])


async def test_a_list_that_fails_stays_and_is_tried_again_after_ever_longer_waits() -> None:
    async with house(offering("a", "x")) as h:
        await h.ready()
        h["a"].answers["tools/list"] = lambda call: failed("overloaded")
        h["a"].announce(TOOLS_CHANGED)
        for attempt in range(1, 9):
            await h.sleeper.slept(attempt)
            h.sleeper.wake()
        assert h.sleeper.asked == [1, 2, 4, 8, 16, 32, 60, 60]
        assert h.names(Kind.TOOLS) == ["a__x"]
        listener = h.listener()
        h["a"].answers["tools/list"] = lambda call: complete(tools=[tool("y")])
        h.sleeper.wake()
        await quiet()
        h.sleeper.wake()
        await listener.hears(TOOLS_CHANGED)
        assert h.names(Kind.TOOLS) == ["a__y"]


async def test_a_news_in_the_meantime_does_not_wait_for_the_next_attempt() -> None:
    async with house(offering("a", "x")) as h:
        await h.ready()
        h["a"].answers["tools/list"] = lambda call: failed("overloaded")
        h["a"].announce(TOOLS_CHANGED)
        await h.sleeper.slept(1)
        listener = h.listener()
        h["a"].answers["tools/list"] = lambda call: complete(tools=[tool("y")])
        h.clock.now += 0.5
        h["a"].announce(TOOLS_CHANGED)
        await listener.hears(TOOLS_CHANGED)


async def test_r46_a_list_that_is_not_answered_fails_in_time() -> None:
    async with house(offering("a", "x"), options={"a": {"timeouts": {"list": 0.01}}}) as h:
        h["a"].gate.shut()
        h["a"].connect()
        await h.sleeper.slept(1)
        assert h.names(Kind.TOOLS) == []


async def test_r10_what_a_lost_upstream_offered_stays_for_the_grace_period() -> None:
    async with house(offering("a", "x"), grace=30) as h:
        await h.ready()
        listener = h.listener()
        h["a"].disconnect()
        await h.sleeper.slept(1)
        assert h.sleeper.asked == [30]
        assert h.names(Kind.TOOLS) == ["a__x"]
        assert listener.changes == []
        h.sleeper.wake()
        await listener.hears(TOOLS_CHANGED)
        assert h.names(Kind.TOOLS) == []


async def test_r10_a_reconnect_in_time_keeps_what_was_listed() -> None:
    async with house(offering("a", "x")) as h:
        await h.ready()
        listener = h.listener()
        h["a"].disconnect()
        await h.sleeper.slept(1)
        h["a"].connect()
        await h["a"].called("tools/list", 2)
        h.sleeper.wake()
        await quiet()
        assert h.names(Kind.TOOLS) == ["a__x"]
        assert listener.changes == []


async def test_failed_attempts_do_not_prolong_the_grace_period() -> None:
    async with house(offering("a", "x")) as h:
        await h.ready()
        h["a"].disconnect()
        await h.sleeper.slept(1)
        h["a"].disconnect()
        await quiet()
        assert len(h.sleeper.asked) == 1


async def test_r21_a_list_that_changed_while_its_upstream_was_away_is_told() -> None:
    async with house(offering("a", "x")) as h:
        await h.ready()
        listener = h.listener()
        h["a"].disconnect()
        h["a"].lists[Kind.TOOLS] = [tool("y")]
        h["a"].connect()
        await listener.hears(TOOLS_CHANGED)
        assert h.names(Kind.TOOLS) == ["a__y"]


async def test_a_retired_upstream_is_gone_at_once() -> None:
    async with house(offering("a", "x")) as h:
        await h.ready()
        listener = h.listener()
        h.gateway.on_event(Retired("a", None))
        assert h.names(Kind.TOOLS) == []
        await listener.hears(TOOLS_CHANGED)


async def test_a_capability_that_is_gone_after_a_reconnect_takes_its_list_along() -> None:
    async with house(offering("a", "x")) as h:
        await h.ready()
        listener = h.listener()
        h["a"].disconnect()
        h["a"].identity = FakeUpstream("a", prompts={}).identity
        h["a"].connect()
        await listener.hears(TOOLS_CHANGED)
        assert h.names(Kind.TOOLS) == []


async def test_r1_a_list_waits_for_a_first_attempt_but_not_for_ever() -> None:
    async with house(offering("a", "x"), offering("slow", "y"), list_wait=0.01) as h:
        h["a"].connect()
        await h["a"].called("tools/list")
        assert await h.listed(Kind.TOOLS) == ["a__x"]


async def test_a_list_waits_until_the_first_attempt_is_over_and_its_lists_are_known() -> None:
    async with house(offering("a", "x"), list_wait=60) as h, anyio.create_task_group() as tasks:
        found: list[str] = []

        async def ask() -> None:
            found.extend(await h.listed(Kind.TOOLS))

        tasks.start_soon(ask)
        await quiet()
        h["a"].gate.shut()
        h["a"].connect()
        await h["a"].gate.holds(1)
        await quiet()
        assert found == []
        h["a"].gate.open()
    assert found == ["a__x"]


async def test_a_list_does_not_wait_for_an_upstream_that_is_known_to_be_away() -> None:
    async with house(offering("a", "x"), offering("down", "y"), list_wait=60) as h:
        h["down"].disconnect()
        h["a"].connect()
        assert await h.listed(Kind.TOOLS) == ["a__x"]


async def test_a_list_does_not_wait_for_one_that_fails() -> None:
    async with house(offering("a", "x"), list_wait=60) as h:
        h["a"].answers["tools/list"] = lambda call: failed("broken")
        h["a"].connect()
        assert await h.listed(Kind.TOOLS) == []


async def test_r1_discover_waits_for_no_upstream() -> None:
    async with house(offering("a", "x"), list_wait=60) as h:
        assert h["a"].state is LinkState.CONNECTING
        await h.call("server/discover")


async def test_r53_a_tool_of_an_upstream_that_is_not_there_is_unavailable_not_unknown() -> None:
    async with house(offering("a", "x"), offering("b")) as h:
        h["a"].reachable = False
        h["a"].disconnect()
        h["b"].connect()
        outcome = await h.call("tools/call", name="a__x")
        assert error(outcome).message == "upstream 'a': connection refused"
        assert error(outcome).code == -32603
        assert h["a"].count("tools/list") == 1


async def test_r53_one_attempt_may_bring_the_upstream_and_its_tool() -> None:
    async with house(offering("a", "x")) as h:
        h["a"].disconnect()
        h["a"].answers["tools/call"] = lambda call: complete(content=[])
        await h.call("tools/call", name="a__x")
        assert h["a"].count("tools/call") == 1


async def test_r53_what_the_attempt_does_not_bring_is_unknown() -> None:
    async with house(offering("a", "x")) as h:
        h["a"].disconnect()
        assert error(await h.call("tools/call", name="a__nope")).message == "Unknown tool: a__nope"


async def test_r53_no_attempt_is_made_for_a_name_that_cannot_be_the_upstreams() -> None:
    async with house(offering("a", "x")) as h:
        h["a"].disconnect()
        assert error(await h.call("tools/call", name="b__x")).message == "Unknown tool: b__x"
        assert h["a"].calls == []


async def test_a_session_sees_what_its_own_link_lists() -> None:
    own = offering("own", "shared")
    own.lists_of["s1"] = {Kind.TOOLS: [tool("mine")]}
    async with house(own, options=OWN_LINKS) as h:
        await h.ready()
        one, two = h.listener(session="s1"), h.listener(session="s2")
        assert await h.listed(Kind.TOOLS, listener=one) == ["own__mine"]
        assert await h.listed(Kind.TOOLS, listener=two) == ["own__shared"]
        assert await h.listed(Kind.TOOLS) == ["own__shared"]


async def test_a_change_on_a_sessions_own_link_is_told_to_that_session_alone() -> None:
    own = offering("own", "x")
    async with house(own, options=OWN_LINKS) as h:
        await h.ready()
        one, two = h.listener(session="s1"), h.listener(session="s2")
        for listener in (one, two):
            assert await h.listed(Kind.TOOLS, listener=listener) == ["own__x"]
        own.lists_of["s1"] = {Kind.TOOLS: [tool("y")]}
        own.announce(TOOLS_CHANGED, "s1")
        await one.hears(TOOLS_CHANGED)
        assert two.changes == []


async def test_a_list_of_a_session_waits_for_its_own_link() -> None:
    own = offering("own", "x")
    async with house(own, options=OWN_LINKS, list_wait=60) as h:
        own.disconnect()
        assert await h.listed(Kind.TOOLS, listener=h.listener(session="s1")) == ["own__x"]


async def test_a_session_that_leaves_releases_its_own_links_and_nothing_of_them_is_kept() -> None:
    own = offering("own", "x")
    async with house(own, offering("other"), options=OWN_LINKS) as h:
        await h.ready()
        listener = h.listener(session="s1")
        await h.listed(Kind.TOOLS, listener=listener)
        h.gateway.leave(listener)
        calls = len(own.calls)
        await quiet()
        assert own.released == ["s1"]
        assert h["other"].released == []
        assert len(own.calls) == calls


async def test_r14_nothing_is_fetched_for_a_session_that_is_gone() -> None:
    own = offering("own", "x")
    async with house(own, options=OWN_LINKS) as h:
        await h.ready()
        calls = len(own.calls)
        own.connect("s1")
        await quiet()
        assert len(own.calls) == calls


async def test_r14_a_session_that_leaves_between_two_pages_is_not_asked_for_the_next() -> None:
    own = offering("own", "x")
    async with house(own, options=OWN_LINKS) as h:
        await h.ready()
        listener = h.listener(session="s1")
        await h.listed(Kind.TOOLS, listener=listener)
        own.answers["tools/list"] = lambda call: complete(tools=[tool("x")], nextCursor=f"{len(own.calls)}")
        own.gate.shut()
        own.announce(TOOLS_CHANGED, "s1")
        await own.gate.holds(1)
        h.gateway.leave(listener)
        calls = len(own.calls)
        own.gate.open()
        await quiet()
        assert len(own.calls) == calls


async def test_r31_a_long_list_is_cut_and_what_was_read_is_kept() -> None:
    async with house(offering("a", "x", "y", "z"), limits={"max_list_entries": 2}) as h:
        await h.ready()
        assert h.names(Kind.TOOLS) == ["a__x", "a__y"]


async def test_what_is_refused_and_renamed_is_reported() -> None:
    async with house(offering("a", "x.y", "x/y", "ok")) as h:
        await h.ready()
        view = h.gateway.catalogue()
        assert [entry.name for entry in view.refused] == ["x/y"]
        assert [(entry.name, entry.exposed) for entry in view.renamed] == [("x.y", "a__x_y")]


async def test_fetches_and_entries_are_counted() -> None:
    async with house(offering("a", "x", "y")) as h:
        await h.ready()
        labels = {"upstream": "a", "kind": "tools"}
        assert h.metrics.registry.get_sample_value("mcproxy_entries", labels) == 2
        size = len(raw(tool("x"))) + len(raw(tool("y")))
        assert h.metrics.registry.get_sample_value("mcproxy_list_bytes", labels) == size
        assert h.metrics.registry.get_sample_value("mcproxy_list_fetches_total", labels) == 1


async def test_a_busy_upstream_is_tried_again() -> None:
    up = FakeUpstream("a", resources={})
    up.lists[Kind.RESOURCES] = [resource("file:///a")]
    up.answers["resources/list"] = lambda call: failed("busy", reason=Reason.UNAVAILABLE)
    async with house(up) as h:
        up.connect()
        await h.sleeper.slept(1)
        del up.answers["resources/list"]
        h.sleeper.wake()
        await up.called("resources/list", 2)
        await quiet()
        assert h.names(Kind.RESOURCES) == ["a+file:///a"]


def lasting(seconds: float, **capability: object) -> FakeUpstream:
    """An upstream that says for how many seconds its list of tools is good."""
    upstream = FakeUpstream("a", tools=capability)
    upstream.lists[Kind.TOOLS] = [tool("x")]
    upstream.answers["tools/list"] = lambda call: complete(tools=upstream.lists[Kind.TOOLS], ttlMs=seconds * 1000)
    return upstream


async def test_r36_a_list_that_is_over_is_fetched_anew_before_it_is_served() -> None:
    async with house(lasting(60)) as h:
        await h.ready()
        listener = h.listener()
        h["a"].lists[Kind.TOOLS] = [tool("y")]
        h.clock.now += 59
        assert await h.listed(Kind.TOOLS) == ["a__x"]
        h.clock.now += 1
        assert await h.listed(Kind.TOOLS) == ["a__y"]
        await listener.hears(TOOLS_CHANGED)
        assert await h.listed(Kind.TOOLS) == ["a__y"]
        assert h["a"].count("tools/list") == 2


async def test_a_list_without_a_ttl_is_fetched_anew_after_a_minute_for_who_asks_where_no_change_is_announced() -> None:
    told = FakeUpstream("b", tools={"listChanged": True})
    told.lists[Kind.TOOLS] = [tool("told")]
    async with house(offering("a", "x"), told) as h:
        await h.ready()
        h["a"].lists[Kind.TOOLS] = h["b"].lists[Kind.TOOLS] = [tool("y")]
        h.clock.now += 59
        assert await h.listed(Kind.TOOLS) == ["a__x", "b__told"]
        h.clock.now += 1
        assert h["a"].count("tools/list") == 1
        assert await h.listed(Kind.TOOLS) == ["a__y", "b__told"]
        assert await h.listed(Kind.TOOLS) == ["a__y", "b__told"]
        assert [h[name].count("tools/list") for name in "ab"] == [2, 1]


async def test_a_list_that_is_over_is_served_as_it_is_where_its_upstream_would_say_that_it_changed() -> None:
    async with house(lasting(60, listChanged=True)) as h:
        await h.ready()
        h.clock.now += 61
        assert await h.listed(Kind.TOOLS) == ["a__x"]
        assert h["a"].count("tools/list") == 1


async def test_a_list_without_any_time_is_not_fetched_for_each_request() -> None:
    async with house(lasting(0)) as h:
        await h.ready()
        for _ in range(5):
            await h.listed(Kind.TOOLS)
        assert h["a"].count("tools/list") == 1
        h.clock.now += 1
        await h.listed(Kind.TOOLS)
        assert h["a"].count("tools/list") == 2


async def test_many_requests_for_a_list_that_is_over_are_one_fetch() -> None:
    async with house(lasting(60)) as h:
        await h.ready()
        h.clock.now += 60
        h["a"].gate.shut()
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(h.listed, Kind.TOOLS)
            await h["a"].gate.holds(1)
            h["a"].gate.open()
        assert h["a"].count("tools/list") == 1 + 1


async def test_a_list_that_is_over_does_not_wait_for_ever_for_a_new_one() -> None:
    async with house(lasting(60), list_wait=0.01) as h:
        await h.ready()
        h.clock.now += 60
        h["a"].gate.shut()
        assert await h.listed(Kind.TOOLS) == ["a__x"]


async def test_a_list_that_is_over_and_cannot_be_fetched_is_served_and_not_asked_for_at_every_turn() -> None:
    async with house(lasting(60)) as h:
        await h.ready()
        h.clock.now += 60
        h["a"].answers["tools/list"] = lambda call: failed("overloaded")
        for _ in range(5):
            assert await h.listed(Kind.TOOLS) == ["a__x"]
        assert h["a"].count("tools/list") == 2


async def test_a_list_is_polled_where_its_upstream_tells_no_changes_and_clients_that_see_one_are_told() -> None:
    async with house(offering("a", "x"), offering("b", "y"), options={"a": {"list_poll": 100}}) as h:
        await h.ready()
        await h.sleeper.slept(1)
        sees, sees_not = h.listener(), h.listener("b")
        h.sleeper.wake()
        await h["a"].called("tools/list", 2)
        await h.sleeper.slept(2)
        assert sees.changes == []
        h["a"].lists[Kind.TOOLS] = [tool("z")]
        h.sleeper.wake()
        await sees.hears(TOOLS_CHANGED)
        assert sees_not.changes == []
        assert h["b"].count("tools/list") == 1


async def test_polls_come_in_no_step() -> None:
    async with house(offering("a", "x"), options={"a": {"list_poll": 100}}) as h:
        await h.ready()
        for turn in range(1, 20):
            await h.sleeper.slept(turn)
            h.sleeper.wake()
        assert all(75 <= seconds <= 125 for seconds in h.sleeper.asked)
        assert len(set(h.sleeper.asked)) > 5


async def test_a_list_is_not_polled_where_its_upstream_tells_changes_nor_by_default() -> None:
    announcing = FakeUpstream("telling", tools={"listChanged": True})
    async with house(announcing, offering("a", "x"), options={"telling": {"list_poll": 100}}) as h:
        await h.ready()
        await quiet()
        assert h.sleeper.asked == []


@pytest.mark.parametrize("said", [PushChannel.LOST, UnannouncedLists(frozenset({Kind.TOOLS}))])
async def test_r75_a_list_is_polled_while_the_push_channel_is_lost_or_does_not_announce_it(
    said: PushChannel | UnannouncedLists,
) -> None:
    up = FakeUpstream("a", tools={"listChanged": True})
    async with house(up, options={"a": {"list_poll": 100}}) as h:
        await h.ready()
        await quiet()
        assert h.sleeper.asked == []
        up.announce(said)
        await h.sleeper.slept(1)
        h.sleeper.wake()
        await up.called("tools/list", 2)
        await h.sleeper.slept(2)
        up.announce(PushChannel.RESTORED)
        await up.called("tools/list", 3)
        h.sleeper.wake()
        await quiet()
        assert up.count("tools/list") <= 4
        assert len(h.sleeper.asked) == 2


@pytest.mark.parametrize("said", [PushChannel.LOST, UnannouncedLists(frozenset({Kind.TOOLS}))])
async def test_r75_a_list_that_is_over_is_fetched_anew_while_its_changes_are_not_announced(
    said: PushChannel | UnannouncedLists,
) -> None:
    up = FakeUpstream("a", tools={"listChanged": True})
    up.answers["tools/list"] = lambda call: complete(tools=[tool("x")], ttlMs=1000)
    async with house(up) as h:
        await h.ready()
        h.clock.now += 60
        await h.listed(Kind.TOOLS)
        assert up.count("tools/list") == 1
        up.announce(said)
        await h.listed(Kind.TOOLS)
        assert up.count("tools/list") == 2
        up.disconnect()
        up.connect()
        await up.called("tools/list", 3)
        h.clock.now += 60
        await h.listed(Kind.TOOLS)
        assert up.count("tools/list") == 3


async def test_a_poll_that_fails_backs_off() -> None:
    async with house(offering("a", "x"), options={"a": {"list_poll": 100}}) as h:
        await h.ready()
        h["a"].answers["tools/list"] = lambda call: failed("overloaded")
        for turn in range(1, 5):
            await h.sleeper.slept(turn)
            h.sleeper.wake()
        assert h.sleeper.asked[1:4] == [1, 2, 4]


async def test_an_upstream_that_is_gone_is_polled_no_more() -> None:
    async with house(offering("a", "x"), options={"a": {"list_poll": 100}}) as h:
        await h.ready()
        await h.sleeper.slept(1)
        h.gateway.on_event(Retired("a", None))
        h.sleeper.wake()
        await quiet()
        assert h["a"].count("tools/list") == 1


async def test_a_storm_is_counted_as_coalesced_and_timed_from_its_first() -> None:
    up = FakeUpstream("a", tools={"listChanged": True})
    async with house(up) as h:
        await h.ready()
        up.gate.shut()
        up.announce(TOOLS_CHANGED)
        await up.gate.holds(1)
        for _ in range(5):
            h.clock.now += 1
            up.announce(TOOLS_CHANGED)
        up.gate.open()
        await up.called("tools/list", 3)
        await quiet()
        labels = {"upstream": "a", "kind": "tools"}
        assert h.metrics.registry.get_sample_value("mcproxy_upstream_notifications_total", labels) == 6
        assert h.metrics.registry.get_sample_value("mcproxy_coalesced_notifications_total", labels) == 4
        assert h.metrics.registry.get_sample_value("mcproxy_notification_delay_seconds_count", labels) == 2
        assert h.metrics.registry.get_sample_value("mcproxy_notification_delay_seconds_sum", labels) == 5 + 4


async def test_a_change_is_timed_until_it_is_told_however_often_its_fetch_failed() -> None:
    up = FakeUpstream("a", tools={"listChanged": True})
    async with house(up) as h:
        await h.ready()
        up.answers["tools/list"] = lambda call: failed("overloaded")
        up.announce(TOOLS_CHANGED)
        await h.sleeper.slept(1)
        h.clock.now += 7
        del up.answers["tools/list"]
        h.sleeper.wake()
        await up.called("tools/list", 3)
        await quiet()
        labels = {"upstream": "a", "kind": "tools"}
        assert h.metrics.registry.get_sample_value("mcproxy_notification_delay_seconds_sum", labels) == 7


class PassingTime:
    """A clock and a sleep that go by together, as far as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, anyio.Event]] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken = anyio.Event()
        self._sleepers.append((self.now + seconds, woken))
        await woken.wait()

    async def go_by(self, seconds: float) -> None:
        self.now += seconds
        for due, woken in self._sleepers:
            if due <= self.now:
                woken.set()
        await quiet()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_storm_of_changes_costs_few_fetches_and_notifications_and_ends_with_the_last_list(fails: bool) -> None:
    up, time = FakeUpstream("up", resources={"listChanged": True}), PassingTime()
    settings = settings_of({"up": {}})
    gateway = Gateway(settings, {"up": up}, Metrics(), Sealer(b"secret"), sleep=time.sleep, now=time.clock)
    up.on_event = gateway.on_event
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gateway.run)
        up.connect()
        await quiet()
        listener = FakeListener()
        gateway.join(listener)
        await time.go_by(60)
        up.calls.clear()
        if fails:
            up.answers["resources/list"] = up.answers["resources/templates/list"] = lambda call: failed("too busy")
        for number in range(500):
            up.lists[Kind.RESOURCES] = [resource(f"memo:{number}")]
            up.lists[Kind.TEMPLATES] = [{"uriTemplate": f"memo:{number}/{{x}}", "name": "t"}]
            up.announce(ListChanged(Kind.RESOURCES))
            up.announce(ListChanged(Kind.TEMPLATES))
            await time.go_by(0.001)
        up.answers.clear()
        await time.go_by(1)
        await time.go_by(60)
        assert len(up.calls) <= 6
        assert len(listener.changes) <= 20
        assert [shown.key for shown in gateway.catalogue().lists[Kind.RESOURCES]] == ["up+memo:499"]
        assert [shown.key for shown in gateway.catalogue().lists[Kind.TEMPLATES]] == ["up+memo:499/{x}"]
        tasks.cancel_scope.cancel()


async def test_a_hanging_upstream_delays_a_list_once() -> None:
    slow, well = FakeUpstream("slow"), FakeUpstream("well")
    well.lists[Kind.TOOLS] = [tool("run")]
    well.lists[Kind.PROMPTS] = [{"name": "greet"}]
    slow.gate.shut()
    async with house(slow, well, list_wait=0.05) as h:
        slow.connect()
        well.connect()
        await quiet()
        assert await h.listed(Kind.TOOLS) == ["well__run"]
        h.gateway.reconfigure(settings_of({"slow": {}, "well": {}}, list_wait=60), h.upstreams)
        assert await h.listed(Kind.TOOLS) == ["well__run"]
        assert await h.listed(Kind.PROMPTS) == ["well__greet"]
        slow.lists[Kind.TOOLS] = [tool("late")]
        slow.gate.open()
        await quiet()
        assert await h.listed(Kind.TOOLS) == ["slow__late", "well__run"]


async def test_an_upstream_that_hangs_as_it_connects_delays_a_list_once() -> None:
    slow, well = FakeUpstream("slow"), FakeUpstream("well")
    well.lists[Kind.TOOLS] = [tool("run")]
    async with house(slow, well, list_wait=0.05) as h:
        well.connect()
        await quiet()
        assert await h.listed(Kind.TOOLS) == ["well__run"]
        h.gateway.reconfigure(settings_of({"slow": {}, "well": {}}, list_wait=60), h.upstreams)
        assert await h.listed(Kind.PROMPTS) == []


async def test_a_malformed_entry_is_left_out_told_once_and_called_all_the_same() -> None:
    up = FakeUpstream("a", tools={}, prompts={}, resources={})
    up.lists[Kind.TOOLS] = [
        tool("good"),
        tool("bad", title=7),
        tool("odd", outputSchema={"type": "object", "required": 1}),
    ]
    up.lists[Kind.PROMPTS] = [{"name": "good"}, {"name": "bad", "arguments": "none"}]
    up.lists[Kind.RESOURCES] = [resource("x:good"), resource("x:bad", size="large")]
    for method in ("tools/call", "prompts/get", "resources/read"):
        up.answers[method] = lambda call: complete(answered=call.method)
    with capture_logs() as logs:
        async with house(up) as h:
            await h.ready()
            assert await h.listed(Kind.TOOLS) == ["a__good"]
            assert await h.listed(Kind.TOOLS, version=LATEST) == ["a__good", "a__odd"]
            assert await h.listed(Kind.TOOLS, endpoint="a") == ["good"]
            assert await h.listed(Kind.PROMPTS) == ["a__good"]
            assert await h.listed(Kind.RESOURCES) == ["a+x:good"]
            for version in (LATEST, LATEST_HANDSHAKE):
                for name in ("a__bad", "a__odd"):
                    assert isinstance(await h.call("tools/call", version=version, name=name), Complete)
            assert isinstance(await h.call("prompts/get", name="a__bad"), Complete)
            assert isinstance(await h.call("resources/read", uri="a+x:bad"), Complete)
            count = h.metrics.hidden_entries.labels("a", "tools")._value.get()
            told = {entry.name: entry.why for entry in h.gateway.catalogue("").refused}
    hidden = [(line["list"], line["name"]) for line in logs if line["event"] == "an entry is not shown"]
    assert sorted(hidden) == [("prompts", "bad"), ("resources", "x:bad"), ("tools", "bad"), ("tools", "odd")]
    assert count == 2
    assert "`$.title`" in told["bad"] or "`$.arguments`" in told["bad"]


async def test_a_malformed_entry_that_the_policy_denies_is_unknown() -> None:
    up = FakeUpstream("a", tools={})
    up.lists[Kind.TOOLS] = [tool("bad", title=7), tool("good")]
    policy = {"policy": {"default": "allow", "roles": {"everyone": {"deny": [{"upstreams": ["a"], "tools": ["bad"]}]}}}}
    async with house(up, access=policy) as h:
        await h.ready()
        assert "Unknown tool" in error(await h.call("tools/call", name="a__bad")).message


async def test_r78_of_very_many_hidden_entries_some_are_named_in_the_log_and_the_others_counted() -> None:
    up = FakeUpstream("a", tools={})
    up.lists[Kind.TOOLS] = [tool(f"bad{number}", title=7) for number in range(MAX_NAMED + 7)]
    with capture_logs() as logs:
        async with house(up) as h:
            await h.ready()
            count = h.metrics.hidden_entries.labels("a", "tools")._value.get()
    told = [line for line in logs if line["event"] == "an entry is not shown"]
    assert len([line for line in told if "name" in line]) == MAX_NAMED
    assert [line["others"] for line in told if "others" in line] == [7]
    assert count == MAX_NAMED + 7
