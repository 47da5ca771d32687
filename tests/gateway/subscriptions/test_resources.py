"""The twin of `mcproxy.gateway.subscriptions`: what upstreams are asked to watch, and who hears of it."""

from __future__ import annotations

import time
from collections import Counter

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from mcproxy.call.calls import Call, Failed, Outcome
from mcproxy.call.clients import ResourceUpdated
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import Principal
from mcproxy.call.upstreams import PushChannel, Retired
from mcproxy.gateway.listings.keys import LinkKey, ResourceKey
from mcproxy.gateway.subscriptions.watchers import Watchers
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject, raw
from mcproxy.protocol.methods import SUBSCRIBE, UNSUBSCRIBE, Kind
from tests.depth import examples
from tests.fakes.upstream import (
    FakeListener,
    FakeUpstream,
    House,
    complete,
    decoded,
    error,
    failed,
    house,
    quiet,
    resource,
    text_of,
)

pytestmark = pytest.mark.anyio


def watchable(name: str = "a") -> FakeUpstream:
    upstream = FakeUpstream(name, resources={"subscribe": True})
    upstream.answers[SUBSCRIBE] = upstream.answers[UNSUBSCRIBE] = lambda call: complete()
    return upstream


async def subscribe(h: House, listener: FakeListener, uri: str = "a+file:///x") -> Outcome:
    return await h.call(SUBSCRIBE, listener=listener, uri=uri)


async def unsubscribe(h: House, listener: FakeListener, uri: str = "a+file:///x") -> Outcome:
    return await h.call(UNSUBSCRIBE, listener=listener, uri=uri)


def updated(upstream: FakeUpstream, uri: str = "file:///x", owner: str | None = None) -> None:
    upstream.announce(ResourceUpdated(uri, {"uri": raw(uri), "_meta": raw({"k": 1})}), owner)


async def test_r21_first_in_subscribes_and_last_out_unsubscribes() -> None:
    async with house(watchable()) as h:
        await h.ready()
        one, two = h.listener(), h.listener("a")
        assert decoded(await subscribe(h, one)) == {}
        await subscribe(h, two, "file:///x")
        assert h["a"].count(SUBSCRIBE) == 1
        await unsubscribe(h, one)
        await quiet()
        assert h["a"].count(UNSUBSCRIBE) == 0
        await unsubscribe(h, two, "file:///x")
        await h["a"].called(UNSUBSCRIBE)
        assert text_of(h["a"].calls[-1].params["uri"]) == "file:///x"


async def test_r21_leaving_counts_as_unsubscribing() -> None:
    async with house(watchable()) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener)
        h.gateway.leave(listener)
        h.gateway.leave(listener)
        await h["a"].called(UNSUBSCRIBE)
        updated(h["a"])
        assert listener.changes == []


async def test_r20_an_update_reaches_its_subscribers_alone_and_in_their_spelling() -> None:
    async with house(watchable(), watchable("b")) as h:
        await h.ready()
        aggregate, alone, other = h.listener(), h.listener("a"), h.listener()
        await subscribe(h, aggregate)
        await subscribe(h, alone, "file:///x")
        await subscribe(h, other, "b+file:///x")
        updated(h["a"])
        assert aggregate.changes == [ResourceUpdated("a+file:///x")]
        assert alone.changes == [ResourceUpdated("file:///x")]
        assert other.changes == []
        change = aggregate.changes[0]
        assert isinstance(change, ResourceUpdated)
        assert decoded(change.params) == {"uri": "a+file:///x", "_meta": {"k": 1}}


async def test_those_who_use_one_spelling_are_told_the_very_same() -> None:
    async with house(watchable()) as h:
        await h.ready()
        several = [h.listener() for _ in range(3)]
        for listener in several:
            await subscribe(h, listener)
        updated(h["a"])
        told = [listener.changes[0] for listener in several]
        assert told == [ResourceUpdated("a+file:///x")] * 3
        assert all(change is told[0] for change in told)


async def test_r20_nothing_is_heard_after_unsubscribing() -> None:
    async with house(watchable()) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener)
        await unsubscribe(h, listener)
        updated(h["a"])
        assert listener.changes == []


async def test_r63_a_respelled_subscription_is_the_listed_resources_and_heard_as_the_client_spelled_it() -> None:
    up = watchable()
    up.lists[Kind.RESOURCES] = [resource("http://Ex.com")]
    async with house(up) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener, "a+http://ex.com/")
        assert text_of(up.calls[-1].params["uri"]) == "http://Ex.com"
        updated(up, "http://Ex.com")
        updated(up, "HTTP://ex.com/")
        assert listener.changes == [ResourceUpdated("a+http://ex.com/")] * 2


async def test_an_update_of_a_sub_resource_reaches_watchers_of_what_holds_it() -> None:
    async with house(watchable()) as h:
        await h.ready()
        folder, file = h.listener(), h.listener()
        await subscribe(h, folder, "a+file:///dir")
        await subscribe(h, file, "a+file:///dir/known")
        updated(h["a"], "file:///dir/new")
        updated(h["a"], "file:///dir/known")
        updated(h["a"], "file:///directory")
        assert folder.changes == [ResourceUpdated("a+file:///dir/new")]
        assert file.changes == [ResourceUpdated("a+file:///dir/known")]


async def test_a_refusal_reaches_the_client_and_nothing_is_kept() -> None:
    async with house(watchable()) as h:
        await h.ready()
        listener = h.listener()
        h["a"].answers[SUBSCRIBE] = lambda call: failed("no such resource", -32002)
        refused = error(await subscribe(h, listener))
        assert (refused.code, refused.message) == (-32002, "no such resource")
        updated(h["a"])
        assert listener.changes == []
        h["a"].answers[SUBSCRIBE] = lambda call: complete()
        assert decoded(await subscribe(h, listener)) == {}
        assert h["a"].count(UNSUBSCRIBE) == 0


async def test_two_subscribers_at_once_share_one_request_and_its_refusal() -> None:
    async with house(watchable()) as h:
        await h.ready()
        h["a"].answers[SUBSCRIBE] = lambda call: failed("no")
        h["a"].gate.shut()
        outcomes: list[Outcome] = []

        async def ask(listener: FakeListener) -> None:
            outcomes.append(await subscribe(h, listener))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, h.listener())
            await h["a"].gate.holds(1)
            tasks.start_soon(ask, h.listener())
            await quiet()
            h["a"].gate.open()
        assert [error(outcome).message for outcome in outcomes] == ["no", "no"]
        assert h["a"].count(SUBSCRIBE) <= 2


async def test_r8_the_first_subscriber_giving_up_does_not_harm_the_second() -> None:
    async with house(watchable()) as h, anyio.create_task_group() as tasks:
        await h.ready()
        h["a"].gate.shut()
        second, impatience = h.listener(), anyio.CancelScope()

        async def give_up() -> None:
            with impatience:
                await subscribe(h, h.listener())

        tasks.start_soon(give_up)
        await h["a"].gate.holds(1)
        tasks.start_soon(subscribe, h, second)
        await quiet()
        impatience.cancel()
        await quiet()
        h["a"].gate.open()
        await subscribe(h, second)
        updated(h["a"])
        assert second.changes == [ResourceUpdated("a+file:///x")]
        assert h["a"].count(SUBSCRIBE) == 1


async def test_r21_a_subscription_to_an_upstream_that_is_away_is_made_when_it_returns() -> None:
    async with house(watchable()) as h:
        await h.ready()
        h["a"].disconnect()
        listener = h.listener()
        assert decoded(await subscribe(h, listener)) == {}
        assert h["a"].count(SUBSCRIBE) == 0
        h["a"].connect()
        await h["a"].called(SUBSCRIBE)


async def test_r21_everything_is_replayed_after_a_reconnect_and_told_once() -> None:
    async with house(watchable()) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener)
        await subscribe(h, listener, "a+file:///y")
        h["a"].disconnect()
        h["a"].connect()
        await h["a"].called(SUBSCRIBE, 4)
        await listener.hears(ResourceUpdated("a+file:///x"))
        await listener.hears(ResourceUpdated("a+file:///y"))
        await quiet()
        assert len(listener.changes) == 2


async def test_r21_everything_is_subscribed_anew_and_told_once_when_an_upstream_is_heard_again() -> None:
    async with house(watchable()) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener)
        h["a"].announce(PushChannel.LOST)
        await quiet()
        assert listener.changes == []
        h["a"].announce(PushChannel.RESTORED)
        await listener.hears(ResourceUpdated("a+file:///x"))
        await quiet()
        assert h["a"].count(SUBSCRIBE) == 2
        assert len(listener.changes) == 1


async def test_unsubscribing_just_as_an_upstream_is_heard_again_leaves_nothing_subscribed() -> None:
    async with house(watchable()) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener)
        h["a"].announce(PushChannel.RESTORED)
        await unsubscribe(h, listener)
        await h["a"].called(UNSUBSCRIBE)


async def test_what_an_upstream_no_longer_reports_when_it_is_heard_again_is_refused_to_newcomers() -> None:
    async with house(watchable()) as h:
        await h.ready()
        await subscribe(h, h.listener())
        h["a"].answers[SUBSCRIBE] = lambda call: failed("no longer")
        h["a"].announce(PushChannel.RESTORED)
        assert error(await subscribe(h, h.listener())).message == "no longer"


async def test_r20_what_an_upstream_refused_to_renew_is_withdrawn_all_the_same_when_the_last_client_leaves() -> None:
    async with house(watchable()) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener)
        h["a"].answers[SUBSCRIBE] = lambda call: failed("not now")
        h["a"].announce(PushChannel.RESTORED)
        await h["a"].called(SUBSCRIBE, 2)
        await quiet()
        await unsubscribe(h, listener)
        assert h["a"].count(UNSUBSCRIBE) == 1


async def test_r20_a_subscription_that_was_not_answered_in_time_is_withdrawn_since_it_may_have_been_made() -> None:
    async with house(watchable()) as h:
        await h.ready()
        h["a"].answers[SUBSCRIBE] = lambda call: Failed(
            ErrorObject(INTERNAL_ERROR, "no answer in time"), Party.UPSTREAM, Reason.TIMEOUT
        )
        assert error(await subscribe(h, h.listener())).message == "no answer in time"
        await h["a"].called(UNSUBSCRIBE)


async def test_r21_no_update_is_told_on_the_first_connect() -> None:
    async with house(watchable()) as h:
        h["a"].disconnect()
        listener = h.listener()
        await subscribe(h, listener)
        h["a"].connect()
        await h["a"].called(SUBSCRIBE)
        await quiet()
        assert ResourceUpdated("a+file:///x") not in listener.changes


async def test_a_replay_that_is_refused_keeps_the_subscription_for_the_next_time() -> None:
    async with house(watchable()) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener)
        h["a"].answers[SUBSCRIBE] = lambda call: failed("not yet")
        h["a"].disconnect()
        h["a"].connect()
        await listener.hears(ResourceUpdated("a+file:///x"))
        h["a"].answers[SUBSCRIBE] = lambda call: complete()
        h["a"].disconnect()
        h["a"].connect()
        await h["a"].called(SUBSCRIBE, 3)


async def test_nothing_is_unsubscribed_at_an_upstream_that_is_away() -> None:
    async with house(watchable()) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener)
        h["a"].disconnect()
        await unsubscribe(h, listener)
        h["a"].connect()
        await quiet()
        assert (h["a"].count(SUBSCRIBE), h["a"].count(UNSUBSCRIBE)) == (1, 0)


async def test_a_link_that_is_lost_while_it_is_asked_is_asked_again_when_it_returns() -> None:
    async with house(watchable()) as h:
        await h.ready()
        listener = h.listener()

        def lose(call: Call) -> Outcome:
            h["a"].answers[SUBSCRIBE] = lambda call: complete()
            h["a"].disconnect()
            return failed("connection lost")

        h["a"].answers[SUBSCRIBE] = lose
        assert decoded(await subscribe(h, listener)) == {}
        h["a"].connect()
        await h["a"].called(SUBSCRIBE, 2)


async def test_a_session_subscribes_on_its_own_link_and_hears_of_that_alone() -> None:
    own = watchable("own")
    async with house(own, options={"own": {"connection": "session"}}) as h:
        await h.ready()
        one, two = h.listener(session="s1"), h.listener(session="s2")
        await subscribe(h, one, "own+file:///x")
        await subscribe(h, two, "own+file:///x")
        assert [call.caller.session for call in own.calls if call.method == SUBSCRIBE] == ["s1", "s2"]
        updated(own, owner="s1")
        assert one.changes.count(ResourceUpdated("own+file:///x")) == 1
        assert ResourceUpdated("own+file:///x") not in two.changes
        h.gateway.leave(one)
        await quiet()
        assert own.count(UNSUBSCRIBE) == 0


async def test_r54_a_session_holds_so_many_subscriptions_and_no_more() -> None:
    async with house(watchable(), limits={"max_subscriptions_per_session": 2}) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener, "a+x:1")
        await subscribe(h, listener, "a+x:2")
        assert "max_subscriptions_per_session" in error(await subscribe(h, listener, "a+x:3")).message
        await unsubscribe(h, listener, "a+x:1")
        assert decoded(await subscribe(h, listener, "a+x:3")) == {}


async def test_a_subscription_that_is_held_is_no_new_one_at_the_limit() -> None:
    async with house(watchable(), limits={"max_subscriptions_per_session": 1}) as h:
        await h.ready()
        listener = h.listener()
        for _ in range(2):
            assert decoded(await subscribe(h, listener, "a+x:1")) == {}


@pytest.mark.parametrize(
    ("setting", "most"),
    [("max_subscriptions_per_principal", 2), ("max_subscription_bytes_per_principal", len("a+x:1a+x:2"))],
)
async def test_r54_a_principal_holds_so_many_subscriptions_in_all_its_sessions_and_no_more(
    setting: str, most: int
) -> None:
    async with house(watchable(), limits={setting: most}) as h:
        await h.ready()
        one, other = h.listener(), h.listener()
        stranger = h.listener(principal=Principal("stranger"))
        await subscribe(h, one, "a+x:1")
        await subscribe(h, other, "a+x:2")
        for listener in (one, other):
            assert setting in error(await subscribe(h, listener, "a+x:3")).message
        assert decoded(await subscribe(h, stranger, "a+x:3")) == {}
        await unsubscribe(h, one, "a+x:1")
        assert decoded(await subscribe(h, other, "a+x:3")) == {}
        h.gateway.leave(other)
        for uri in ("a+x:4", "a+x:5"):
            assert decoded(await subscribe(h, one, uri)) == {}


async def test_a_client_that_cannot_hear_or_has_left_subscribes_to_nothing() -> None:
    async with house(watchable()) as h:
        await h.ready()
        assert error(await h.call(SUBSCRIBE, uri="a+file:///x")).code == -32600
        gone = h.listener()
        h.gateway.leave(gone)
        assert error(await subscribe(h, gone)).code == -32600
        assert h["a"].count(SUBSCRIBE) == 0


async def test_unsubscribing_from_what_was_never_subscribed_is_no_error() -> None:
    async with house(watchable()) as h:
        await h.ready()
        assert decoded(await unsubscribe(h, h.listener(), "no:where")) == {}


@pytest.mark.parametrize("uri", [None, 7, {}])
async def test_a_uri_that_is_none_is_refused(uri: object) -> None:
    async with house(watchable()) as h:
        await h.ready()
        assert error(await h.call(SUBSCRIBE, listener=h.listener(), uri=uri)).code == -32602


async def test_a_retired_link_comes_back_as_a_new_one() -> None:
    async with house(watchable()) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener)
        h.gateway.on_event(Retired("a", None))
        h["a"].connect()
        await h["a"].called(SUBSCRIBE, 2)
        await quiet()
        assert ResourceUpdated("a+file:///x") not in listener.changes


LINKS = [LinkKey("a", None), LinkKey("a", "s"), LinkKey("b", None)]
topics = st.builds(ResourceKey, st.sampled_from(LINKS), st.sampled_from(["x", "y"]))
people = st.integers(0, 2)
spellings = st.sampled_from(["p", "q"])


class WatchersAgainstAList(RuleBasedStateMachine):
    """`Watchers` against a plain list of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.people = [FakeListener() for _ in range(3)]
        self.watchers = Watchers()
        self.model: list[tuple[ResourceKey, FakeListener, str]] = []

    @rule(topic=topics, who=people, spelling=spellings)
    def add(self, topic: ResourceKey, who: int, spelling: str) -> None:
        held = (topic, self.people[who], spelling)
        assert self.watchers.add(*held) == (held not in self.model)
        if held not in self.model:
            self.model.append(held)

    @rule(topic=topics, who=people, spelling=spellings)
    def remove(self, topic: ResourceKey, who: int, spelling: str) -> None:
        held = (topic, self.people[who], spelling)
        was_held = held in self.model
        self.model = [other for other in self.model if other != held]
        assert self.watchers.remove(*held) == (was_held and topic not in {other[0] for other in self.model})

    @invariant()
    def agree(self) -> None:
        assert {key for _, key, _ in self.watchers.everyone()} == {topic for topic, _, _ in self.model}
        for topic, _, _ in self.model:
            assert topic in self.watchers
            assert self.watchers.affected(topic.link, topic.uri) == [topic]
            heard = Counter((id(listener), spelling) for listener, spelling in self.watchers.watchers_of(topic))
            assert heard == Counter((id(who), spelling) for other, who, spelling in self.model if other == topic)
        for person in self.people:
            held = [(topic, spelling) for topic, who, spelling in self.model if who is person]
            assert self.watchers.held(person) == held


WatchersAgainstAList.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=30)
TestWatchersAgainstAList = WatchersAgainstAList.TestCase


LINK = LinkKey("a", None)


def watching(*uris: str) -> Watchers:
    watchers, listener = Watchers(), FakeListener()
    for uri in uris:
        watchers.add(ResourceKey(LINK, uri), listener, uri)
    return watchers


def meant(watchers: Watchers, uri: str) -> set[str]:
    topics = watchers.affected(LINK, uri)
    assert len(set(topics)) == len(topics)
    return {topic.uri for topic in topics}


async def test_an_update_means_the_resource_itself_else_its_other_spellings_else_what_it_lies_in() -> None:
    watchers = watching("HTTP://Host", "http://host/a", "http://host/a/", "http://host/b c", "http://host/b%20c")
    assert meant(watchers, "http://host/a") == {"http://host/a"}
    assert meant(watchers, "HTTP://host/b%20c") == {"http://host/b c", "http://host/b%20c"}
    assert meant(watchers, "http://HOST/a/x/y") == {"HTTP://Host", "http://host/a", "http://host/a/"}
    assert meant(watchers, "http://host/ab") == {"HTTP://Host"}
    assert meant(watchers, "http://hostess/a") == set()


async def test_an_update_of_what_has_too_long_a_name_reaches_watchers_of_what_holds_it() -> None:
    async with house(watchable()) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener, "a+file:///dir")
        updated(h["a"], f"file:///dir/{'x/' * 1_000_000}")
        assert listener.changes == [ResourceUpdated("a+file:///dir")]


async def test_r1_a_storm_of_unwatched_updates_costs_little_however_much_is_watched() -> None:
    watchers = watching(*(f"file:///{number}" for number in range(10_000)))
    begun = time.process_time()
    for number in range(200):
        assert watchers.affected(LINK, f"file:///unknown/{number}") == []
    assert time.process_time() - begun < 1


async def test_subscriptions_are_counted_for_clients_and_upstream_apart() -> None:
    async with house(watchable(), watchable("b")) as h:
        await h.ready()
        one, two = h.listener(), h.listener()
        await subscribe(h, one)
        await subscribe(h, two)
        await subscribe(h, two, "a+file:///y")
        assert (subscriptions(h, "clients"), subscriptions(h, "upstream")) == (3, 2)
        h["a"].disconnect()
        h.gateway.leave(one)
        assert (subscriptions(h, "clients"), subscriptions(h, "upstream")) == (2, 0)
        assert h.metrics.registry.get_sample_value("mcproxy_subscriptions", {"upstream": "b", "side": "clients"}) == 0


def subscriptions(h: House, side: str) -> float | None:
    return h.metrics.registry.get_sample_value("mcproxy_subscriptions", {"upstream": "a", "side": side})


async def test_what_the_cache_watches_counts_as_no_clients_subscription() -> None:
    up = watchable()
    up.answers["resources/read"] = lambda call: complete(contents=[], ttlMs=60_000, cacheScope="public")
    async with house(up, options={"a": {"cache": {"coherent": True}}}) as h:
        await h.ready()
        await h.call("resources/read", uri="a+file:///x")
        await up.called(SUBSCRIBE)
        await quiet()
        assert (subscriptions(h, "clients"), subscriptions(h, "upstream")) == (0, 1)


async def test_notifications_are_counted_on_both_sides_and_timed() -> None:
    async with house(watchable()) as h:
        await h.ready()
        for _ in range(3):
            await subscribe(h, h.listener())
        updated(h["a"])
        updated(h["a"], "file:///nobody-watches")
        labels = {"upstream": "a", "kind": "updated"}
        assert h.metrics.registry.get_sample_value("mcproxy_upstream_notifications_total", labels) == 2
        assert h.metrics.registry.get_sample_value("mcproxy_notifications_total", labels) == 3
        assert h.metrics.registry.get_sample_value("mcproxy_notification_delay_seconds_count", labels) == 1


SILENT: dict[str, object] = {"resources": {}}
"""The capabilities of a server that offers no subscriptions."""


def silent(name: str = "a") -> FakeUpstream:
    return FakeUpstream(name, **SILENT)


async def test_an_update_of_a_server_without_subscriptions_reaches_the_handshake_clients_that_can_read_it() -> None:
    async with house(silent(), watchable("b"), options={"a": {"resources": {"exclude": ["hidden:*"]}}}) as h:
        await h.ready()
        handshake, alone, elsewhere = h.listener(), h.listener("a"), h.listener("b")
        stateless = FakeListener(replace(handshake.caller, version=LATEST))
        h.gateway.join(stateless)
        updated(h["a"], "x:1")
        updated(h["a"], "hidden:1")
        assert handshake.changes == [ResourceUpdated("a+x:1")]
        assert alone.changes == [ResourceUpdated("x:1")]
        assert elsewhere.changes == stateless.changes == []


async def test_a_resource_of_a_server_without_subscriptions_is_watched_at_the_gateway_alone() -> None:
    async with house(silent(), watchable("b")) as h:
        await h.ready()
        stateless = FakeListener(replace(h.listener().caller, version=LATEST))
        h.gateway.join(stateless)
        assert decoded(await subscribe(h, stateless, "a+x:1")) == {}
        assert h["a"].count(SUBSCRIBE) == 0
        updated(h["a"], "x:1")
        updated(h["a"], "x:2")
        assert stateless.changes == [ResourceUpdated("a+x:1")]
        await unsubscribe(h, stateless, "a+x:1")
        await quiet()
        assert h["a"].count(UNSUBSCRIBE) == 0


async def test_a_client_that_watches_hears_once_of_an_update_of_a_server_without_subscriptions() -> None:
    async with house(silent(), watchable("b")) as h:
        await h.ready()
        listener = h.listener()
        await subscribe(h, listener, "a+x:1")
        updated(h["a"], "x:1")
        assert listener.changes == [ResourceUpdated("a+x:1")]
