"""Other settings while the gateway runs (R49): who sees what afterwards, who is told of it, and what stays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest

from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.clients import Change, ListChanged, ResourceUpdated
from mcproxy.call.errors import Reason
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from tests.fakes.bridging import ACCEPTED, elicitation
from tests.fakes.upstream import (
    FakeListener,
    FakeUpstream,
    House,
    complete,
    decoded,
    error,
    house,
    quiet,
    resource,
    settings_of,
    tool,
)

pytestmark = pytest.mark.anyio

TOOLS, RESOURCES = ListChanged(Kind.TOOLS), ListChanged(Kind.RESOURCES)

Options = Mapping[str, Mapping[str, object]]


def reconfigure(h: House, *upstreams: FakeUpstream, options: Options | None = None, **proxy: object) -> None:
    options = options or {}
    settings = settings_of({upstream.name: options.get(upstream.name, {}) for upstream in upstreams}, **proxy)
    for name in h.upstreams.keys() - {upstream.name for upstream in upstreams}:
        h[name].on_event = lambda event: None
    for upstream in upstreams:
        if h.upstreams.get(upstream.name) is not upstream and upstream.name in h.upstreams:
            h[upstream.name].on_event = lambda event: None
        upstream.on_event = h.gateway.on_event
        h.upstreams[upstream.name] = upstream
    h.gateway.reconfigure(settings, {upstream.name: upstream for upstream in upstreams})


def offering(name: str, *tools: str) -> FakeUpstream:
    upstream = FakeUpstream(name)
    upstream.lists[Kind.TOOLS] = [tool(each) for each in tools]
    upstream.answers["tools/call"] = lambda call: complete(by=name)
    return upstream


def watched(name: str) -> FakeUpstream:
    upstream = FakeUpstream(name)
    upstream.lists[Kind.RESOURCES] = [resource("x:1")]
    upstream.answers["resources/subscribe"] = lambda call: complete()
    upstream.answers["resources/unsubscribe"] = lambda call: complete()
    upstream.answers["resources/read"] = lambda call: complete(contents=[], ttlMs=60_000, cacheScope="public")
    return upstream


async def test_r49_what_compares_equal_is_not_touched_and_not_announced() -> None:
    a = offering("a", "x")
    async with house(a) as h:
        await h.ready()
        listener, calls = h.listener(), len(a.calls)
        reconfigure(h, a)
        await quiet()
        assert h.names(Kind.TOOLS) == ["a__x"]
        assert listener.changes == []
        assert len(a.calls) == calls


@pytest.mark.parametrize(
    ("options", "proxy"),
    [({"list_poll": 60}, {}), ({"cache": {"ttl": {"*": 600}}}, {}), ({}, {"grace": 7})],
    ids=["list_poll", "cache", "proxy"],
)
async def test_r49_a_value_on_which_no_list_depends_has_no_view_made_anew(
    options: dict[str, object], proxy: dict[str, object]
) -> None:
    a, b = offering("a", "x"), offering("b", "y")
    async with house(a, b) as h:
        await h.ready()
        listener, catalogue = h.listener(), h.gateway._catalogue
        routes, policy = catalogue.routes(listener.caller), catalogue._policy
        reconfigure(h, a, b, options={"a": options}, **proxy)
        assert catalogue.routes(listener.caller) is routes
        assert catalogue._policy is policy
        assert listener.changes == []
        reconfigure(h, a, b, options={"a": {**options, "prefix": "new"}}, **proxy)
        assert h.names(Kind.TOOLS) == ["new__x", "b__y"]


async def test_r49_a_new_prefix_is_new_names_over_the_same_link() -> None:
    a, b = offering("a", "x"), offering("b", "y")
    async with house(a, b) as h:
        await h.ready()
        everything, only_b = h.listener(), h.listener(endpoint="b")
        fetched = a.count("tools/list")
        reconfigure(h, a, b, options={"a": {"prefix": "new"}})
        assert h.names(Kind.TOOLS) == ["new__x", "b__y"]
        await quiet()
        assert everything.changes == [TOOLS]
        assert only_b.changes == []
        assert decoded(await h.call("tools/call", name="new__x"))["by"] == "a"
        assert "a__x" in error(await h.call("tools/call", name="a__x")).message
        assert a.count("tools/list") == fetched


async def test_r49_a_filter_counts_from_now_on() -> None:
    a = offering("a", "x", "y")
    async with house(a) as h:
        await h.ready()
        listener = h.listener()
        reconfigure(h, a, options={"a": {"tools": {"exclude": ["y"]}}})
        assert h.names(Kind.TOOLS) == ["a__x"]
        await listener.hears(TOOLS)
        reconfigure(h, a)
        assert h.names(Kind.TOOLS) == ["a__x", "a__y"]


async def test_r49_upstreams_that_come_and_go_are_seen_in_the_order_of_the_configuration() -> None:
    a, b, c = offering("a", "x"), offering("b", "x"), offering("c", "x")
    async with house(a, b) as h:
        await h.ready()
        listener = h.listener()
        reconfigure(h, c, b)
        assert h.names(Kind.TOOLS) == ["b__x"]
        await listener.hears(TOOLS)
        await h.ready()
        assert h.names(Kind.TOOLS) == ["c__x", "b__x"]
        reconfigure(h, b, c)
        assert h.names(Kind.TOOLS) == ["b__x", "c__x"]


async def test_r49_a_call_in_flight_ends_on_the_upstream_that_it_began_on() -> None:
    a, successor = offering("a", "x"), offering("a", "x")
    successor.answers["tools/call"] = lambda call: complete(by="successor")
    async with house(a) as h:
        await h.ready()
        a.gate.shut()
        answered: list[object] = []

        async def call() -> None:
            answered.append(decoded(await h.call("tools/call", name="a__x"))["by"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await a.gate.holds(1)
            reconfigure(h, successor)
            assert decoded(await h.call("tools/call", name="a__x"))["by"] == "successor"
            reconfigure(h)
            a.gate.open()
        assert answered == ["a"]


@pytest.mark.parametrize(("stays", "labels"), [(True, ("a", "a__x")), (False, ("unknown", "unknown"))])
async def test_r52_a_call_is_counted_by_what_it_went_to_unless_its_upstream_is_no_more(
    stays: bool, labels: tuple[str, str]
) -> None:
    a, b = offering("a", "x"), offering("b", "x")
    async with house(a, b) as h:
        await h.ready()
        a.gate.shut()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(h.call, "tools/call", name="a__x"))
            await a.gate.holds(1)
            reconfigure(h, *([a, b] if stays else [b]), options={"a": {"tools": {"exclude": ["x"]}}} if stays else None)
            a.gate.open()
        series = {"upstream": labels[0], "method": "tools/call", "subject": labels[1], "outcome": "ok"}
        assert h.metrics.registry.get_sample_value("mcproxy_requests_total", series) == 1


async def test_r52_a_call_that_ends_after_its_upstream_went_brings_no_series_of_it_back() -> None:
    a, b = offering("a", "x"), offering("b", "x")
    async with house(a, b) as h:
        await h.ready()
        a.gate.shut()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(h.call, "tools/call", name="a__x"))
            await a.gate.holds(1)
            reconfigure(h, b)
            h.metrics.forget("a")
            a.gate.open()
        families = h.metrics.registry.collect()
        assert "a" not in {sample.labels.get("upstream") for family in families for sample in family.samples}


async def test_r10_what_is_connected_anew_stays_listed_and_is_told_of_only_if_it_lists_otherwise() -> None:
    a, same, other = offering("a", "x"), offering("a", "x"), offering("a", "y")
    async with house(a) as h:
        await h.ready()
        listener = h.listener()
        for successor, told, names in ((same, 0, ["a__x"]), (other, 1, ["a__y"])):
            before = h.names(Kind.TOOLS)
            reconfigure(h, successor)
            assert h.names(Kind.TOOLS) == before
            await h.ready()
            await quiet()
            assert h.names(Kind.TOOLS) == names
            assert listener.changes == [TOOLS] * told


async def test_r49_an_upstream_that_is_gone_is_asked_for_nothing() -> None:
    a = offering("a", "x")
    async with house(a) as h:
        await h.ready()
        a.gate.shut()
        a.announce(TOOLS)
        await a.called("tools/list", 2)
        reconfigure(h)
        a.gate.open()
        await quiet()
        calls = len(a.calls)
        h.sleeper.wake()
        await quiet()
        assert len(a.calls) == calls
        assert h.names(Kind.TOOLS) == []


async def test_r53_the_endpoint_of_an_upstream_that_is_gone_shows_nothing() -> None:
    a = offering("a", "x")
    async with house(a) as h:
        await h.ready()
        listener = h.listener(endpoint="a")
        reconfigure(h)
        assert h.names(Kind.TOOLS, "a") == []
        await listener.hears(TOOLS)
        assert isinstance(await h.call("tools/call", endpoint="a", name="x"), Failed)


async def test_r36_what_was_read_of_a_changed_upstream_is_read_again_and_of_others_is_not() -> None:
    a, b = watched("a"), watched("b")
    async with house(a, b) as h:
        await h.ready()
        for name in ("a", "b"):
            await h.call("resources/read", uri=f"{name}+x:1")
        reconfigure(h, a, b, options={"a": {"cache": {"max_bytes": 1000}}})
        for name in ("a", "b"):
            await h.call("resources/read", uri=f"{name}+x:1")
        assert (a.count("resources/read"), b.count("resources/read")) == (2, 1)
        labels = {"upstream": "a", "cause": "reload"}
        assert h.metrics.registry.get_sample_value("mcproxy_cache_invalidations_total", labels) == 1


async def test_other_timeouts_touch_nothing_that_was_read_or_is_listed() -> None:
    a = watched("a")
    slower = {"a": {"timeouts": {"idle": 5}}}
    async with house(a) as h:
        await h.ready()
        listener, view = h.listener(), h.gateway.catalogue()
        await h.call("resources/read", uri="a+x:1")
        reconfigure(h, a, options=slower)
        reconfigure(h, a, options=slower, list_wait=7)
        await h.call("resources/read", uri="a+x:1")
        assert a.count("resources/read") == 1
        assert h.gateway.catalogue().lists == view.lists
        assert listener.changes == []


async def test_other_timeouts_hold_for_what_is_asked_from_now_on() -> None:
    a = watched("a")
    async with house(a) as h:
        await h.ready()
        reconfigure(h, a, options={"a": {"timeouts": {"connect": 0.01, "list": 0.02}}})
        a.gate.shut()
        outcome = await h.call("resources/subscribe", listener=h.listener(), uri="a+x:1")
        assert "in 0.03 s" in error(outcome).message


async def test_r36_a_read_that_is_under_way_is_not_kept() -> None:
    a = watched("a")
    async with house(a) as h:
        await h.ready()
        a.gate.shut()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: h.call("resources/read", uri="a+x:1"))
            await a.gate.holds(1)
            reconfigure(h, a, options={"a": {"cache": {"shared": True}}})
            a.gate.open()
        await h.call("resources/read", uri="a+x:1")
        assert a.count("resources/read") == 2


async def test_r21_watchers_stay_where_other_settings_keep_the_link() -> None:
    a = watched("a")
    async with house(a) as h:
        await h.ready()
        listener = h.listener()
        await h.call("resources/subscribe", listener=listener, uri="a+x:1")
        reconfigure(h, a, options={"a": {"list_poll": 5}})
        a.announce(ResourceUpdated("x:1"))
        assert listener.changes == [ResourceUpdated("a+x:1")]
        assert (a.count("resources/subscribe"), a.count("resources/unsubscribe")) == (1, 0)


async def test_r21_watchers_are_subscribed_anew_and_told_once_where_the_upstream_comes_back() -> None:
    a, successor = watched("a"), watched("a")
    async with house(a) as h:
        await h.ready()
        listener = h.listener()
        await h.call("resources/subscribe", listener=listener, uri="a+x:1")
        reconfigure(h)
        listener.changes.clear()
        reconfigure(h, successor)
        successor.connect()
        await listener.hears(ResourceUpdated("a+x:1"))
        assert successor.count("resources/subscribe") == 1
        successor.announce(ResourceUpdated("x:1"))
        assert listener.changes.count(ResourceUpdated("a+x:1")) == 2


async def test_r49_a_link_of_each_sessions_own_takes_the_place_of_the_shared_one_and_the_other_way_round() -> None:
    a, own, shared = watched("a"), watched("a"), watched("a")
    async with house(a) as h:
        await h.ready()
        listener = h.listener(session="s")
        await h.call("resources/subscribe", listener=listener, uri="a+x:1")
        reconfigure(h, own, options={"a": {"connection": "session"}})
        await own.called("resources/subscribe")
        assert [call.caller.session for call in own.calls if call.method == "resources/subscribe"] == ["s"]
        own.announce(ResourceUpdated("x:1"), "s")
        await listener.hears(ResourceUpdated("a+x:1"))
        reconfigure(h, shared)
        shared.connect()
        await shared.called("resources/subscribe")
        listener.changes.clear()
        shared.announce(ResourceUpdated("x:1"))
        await listener.hears(ResourceUpdated("a+x:1"))


class Asking(FakeUpstream):
    """Asks its client once in each call of a tool."""

    async def __call__(self, call: Call) -> Outcome:
        if call.method != "tools/call":
            return await super().__call__(call)
        return complete(said=await call.client.ask(elicitation()))


async def test_r49_a_call_that_waits_for_its_client_goes_on_where_it_was() -> None:
    a = Asking("a")
    a.lists[Kind.TOOLS] = [tool("x")]
    modern: dict[str, Any] = {"version": LATEST, "capabilities": {"elicitation": raw({"form": {}})}, "name": "a__x"}
    async with house(a) as h:
        await h.ready()
        outcomes: list[Outcome] = []

        async def call() -> None:
            outcomes.append(await h.call("tools/call", **modern))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await h.sleeper.slept(1)
            h.sleeper.wake()
        (required,) = outcomes
        assert isinstance(required, InputRequired)
        reconfigure(h, a, offering("b", "y"), bridge={"max_rounds": 3})
        (key,) = required.requests
        done = await h.call("tools/call", **modern, inputResponses={key: ACCEPTED}, requestState=required.state)
        assert decoded(done)["said"] == ACCEPTED


async def test_what_is_hidden_by_now_is_not_heard_of() -> None:
    a = watched("a")
    async with house(a) as h:
        await h.ready()
        listener = h.listener()
        await h.call("resources/subscribe", listener=listener, uri="a+x:1")
        reconfigure(h, a, options={"a": {"resources": {"exclude": ["*"]}}})
        a.announce(ResourceUpdated("x:1"))
        assert updates(listener) == []


async def test_a_prefix_that_a_reload_renames_tells_watchers_the_uris_that_they_can_read() -> None:
    a = watched("a")
    async with house(a) as h:
        await h.ready()
        listener = h.listener()
        await h.call("resources/subscribe", listener=listener, uri="a+x:1")
        reconfigure(h, a, options={"a": {"prefix": "new"}})
        a.announce(ResourceUpdated("x:1"))
        assert updates(listener) == [ResourceUpdated("new+x:1")]
        await h.call("resources/unsubscribe", listener=listener, uri="a+x:1")
        a.announce(ResourceUpdated("x:1"))
        assert updates(listener) == [ResourceUpdated("new+x:1")]


async def test_prefixes_that_a_reload_swaps_tell_watchers_the_uris_that_they_can_read() -> None:
    a, b = watched("a"), watched("b")
    async with house(a, b) as h:
        await h.ready()
        listener, alone = h.listener(), h.listener("a")
        await h.call("resources/subscribe", listener=listener, uri="a+x:1")
        await h.call("resources/subscribe", listener=alone, uri="x:1")
        reconfigure(h, a, b, options={"a": {"prefix": "b"}, "b": {"prefix": "a"}})
        a.announce(ResourceUpdated("x:1"))
        b.announce(ResourceUpdated("x:1"))
        assert updates(listener) == [ResourceUpdated("b+x:1")]
        assert updates(alone) == [ResourceUpdated("x:1")]
        await h.call("resources/unsubscribe", listener=listener, uri="b+x:1")
        await h.call("resources/unsubscribe", listener=alone, uri="x:1")
        await a.called("resources/unsubscribe")


async def test_r49_limits_count_from_now_on() -> None:
    a = watched("a")
    async with house(a) as h:
        await h.ready()
        reconfigure(h, a, limits={"max_subscriptions_per_session": 1})
        listener = h.listener()
        await h.call("resources/subscribe", listener=listener, uri="a+x:1")
        refused = await h.call("resources/subscribe", listener=listener, uri="a+x:2")
        assert "max_subscriptions_per_session" in error(refused).message


async def test_r49_lists_are_polled_as_often_as_other_settings_say() -> None:
    a = FakeUpstream("a", tools={})
    async with house(a) as h:
        await h.ready()
        await quiet()
        fetched = a.count("tools/list")
        reconfigure(h, a, options={"a": {"list_poll": 40}})
        await h.sleeper.slept(1)
        assert 30 <= h.sleeper.asked[-1] <= 50
        h.sleeper.wake()
        await a.called("tools/list", fetched + 1)


async def test_r53_a_call_that_waits_for_an_upstream_that_is_taken_out_is_told_that_it_is_not_there() -> None:
    a = offering("a", "x")
    async with house(a) as h:
        a.gate.shut()
        outcomes: list[object] = []

        async def call() -> None:
            outcomes.append(await h.call("tools/call", name="a__x"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await a.gate.holds(1)
            reconfigure(h)
            a.gate.open()
        assert [outcome.reason for outcome in outcomes if isinstance(outcome, Failed)] == [Reason.UNAVAILABLE]


def updates(listener: FakeListener) -> list[Change]:
    return [change for change in listener.changes if isinstance(change, ResourceUpdated)]


async def test_an_upstream_that_a_reload_brings_is_asked_for_the_log_level_that_a_client_named_before() -> None:
    a, b = FakeUpstream("a", logging={}), FakeUpstream("b", logging={})
    for upstream in (a, b):
        upstream.answers["logging/setLevel"] = lambda call: complete()
    async with house(a) as h:
        await h.ready()
        await h.call("logging/setLevel", listener=h.listener(), level="debug")
        reconfigure(h, a, b)
        b.connect()
        await b.called("logging/setLevel", 1)
        assert [call.params for call in b.calls if call.method == "logging/setLevel"] == [{"level": raw("debug")}]


def linking(name: str, uri: str) -> FakeUpstream:
    """An upstream whose tool names a resource."""
    upstream = offering(name, "find")
    upstream.answers["tools/call"] = lambda call: complete(content=[{"type": "resource_link", "uri": uri, "name": "n"}])
    return upstream


@pytest.mark.parametrize(
    ("uri", "before", "after", "expected"),
    [
        ("x:1", {"a": {"prefix": ""}}, {"a": {"prefix": "a-bare"}}, ("x:1", "a-bare+x:1")),
        ("x:1", {"a": {"prefix": "a-bare"}}, {"a": {"prefix": ""}}, ("a-bare+x:1", "x:1")),
        (
            "git+x:1",
            {"a": {"prefix": ""}},
            {"a": {"prefix": ""}, "b": {"prefix": "git"}},
            ("git+x:1", "a-bare+git+x:1"),
        ),
    ],
)
async def test_r27_links_in_results_are_in_the_names_of_the_settings_in_force(
    uri: str, before: Options, after: Options, expected: tuple[str, str]
) -> None:
    a, b = linking("a", uri), FakeUpstream("b")
    async with house(a, b, options=before) as h:
        await h.ready()
        found = []
        for options in (before, after):
            reconfigure(h, a, b, options=options)
            [name] = h.names(Kind.TOOLS)
            outcome = await h.call("tools/call", name=name)
            assert isinstance(outcome, Complete)
            found.append(msgspec.json.decode(outcome.result["content"])[0]["uri"])
        assert tuple(found) == expected
