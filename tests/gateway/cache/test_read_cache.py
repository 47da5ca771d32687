"""`mcproxy.gateway.cache.read_cache`: what callers of a cached upstream get, and what the upstream is asked."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from msgspec import Raw

from mcproxy import settings
from mcproxy.call.calls import Call, Complete, Failed, InputRequired
from mcproxy.call.clients import InputRequest, ListChanged, ResourceUpdated
from mcproxy.call.errors import Party, Reason
from mcproxy.call.upstreams import PushChannel, Retired, UpstreamChanged
from mcproxy.catalog.uris import MAX_URI
from mcproxy.gateway.cache.policy import META_STALE
from mcproxy.protocol.caching import LONGEST_TTL
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, RESOURCE_NOT_FOUND, ErrorObject, first_level, raw
from mcproxy.protocol.methods import LOG_MESSAGE, PROGRESS, Kind
from tests.fakes.reading import DOWN, NAME, Pending, Reader, Server, members, read, settled, text, tool, world
from tests.fakes.upstream import FakeUpstream, house
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

A = "file:///a"
PUBLIC = {"cacheScope": "public", "ttlMs": 60_000}
MINUTE = {"*": 60}
QUESTION = InputRequest("elicitation/create", {})


def reader(name: str) -> Reader:
    return Reader(principal=name)


async def all_done(*pending: Pending) -> list[str]:
    with anyio.fail_after(GUARD):
        return [text(await each.done()) for each in pending]


# How long an entry lives.


async def test_r36_a_result_lives_for_its_own_ttl_and_not_a_moment_longer() -> None:
    async with world(Server(hints={"ttlMs": 5000}), ttl={"*": 3600}) as w:
        await w.get(read(A))
        w.server.write(A)
        w.clock.now += 4.999
        assert text(await w.get(read(A))) == "0 for alice"
        w.clock.now += 0.001
        assert text(await w.get(read(A))) == "1 for alice"


@pytest.mark.parametrize("ttl", [0, -1, "1000", None, True, [], 10**400], ids=str)
async def test_r36_a_ttl_of_nothing_or_of_nonsense_is_no_life_whatever_is_configured(ttl: object) -> None:
    encoded = Raw(str(ttl).encode()) if isinstance(ttl, int) and not isinstance(ttl, bool) else raw(ttl)
    async with world(Server(hints={"ttlMs": encoded}), ttl=MINUTE) as w:
        await w.get(read(A))
        await w.get(read(A))
        assert w.server.reads == 2


async def test_the_configured_ttl_is_found_by_glob_and_the_first_that_matches_counts() -> None:
    async with world(ttl={"file:///live/*": 0, "file:///*": 60}) as w:
        for uri in (A, A, "file:///live/x", "file:///live/x", "memo:x", "memo:x"):
            await w.get(read(uri))
        assert w.server.reads == 1 + 2 + 2


async def test_without_any_ttl_nothing_is_kept() -> None:
    async with world() as w:
        await w.get(read(A))
        await w.get(read(A))
        assert w.server.reads == 2
        assert w.metric("mcproxy_cache_entries") == 0


async def test_a_hit_states_what_is_left_of_its_ttl() -> None:
    async with world(Server(hints={"ttlMs": 5000})) as w:
        assert members(await w.get(read(A)))["ttlMs"] == 5000
        w.clock.now += 2
        assert members(await w.get(read(A)))["ttlMs"] == 3000


async def test_a_ttl_beyond_all_bounds_is_told_as_the_longest() -> None:
    async with world(Server(hints={"ttlMs": Raw(b"1e308")})) as w:
        await w.get(read(A))
        w.clock.now += 2
        assert members(await w.get(read(A)))["ttlMs"] == (LONGEST_TTL - 2) * 1000
        assert w.server.reads == 1


async def test_an_update_of_what_is_too_long_to_be_kept_puts_all_in_doubt() -> None:
    async with world(ttl=MINUTE) as w:
        await w.get(read(A))
        w.updated(f"{A}/{'x' * MAX_URI}")
        await w.get(read(A))
        assert w.server.reads == 2


async def test_a_hit_without_a_ttl_of_its_own_is_the_very_bytes_of_the_answer() -> None:
    async with world(ttl=MINUTE) as w:
        first, second = await w.get(read(A)), await w.get(read(A))
        assert isinstance(first, Complete)
        assert isinstance(second, Complete)
        assert first.result == second.result
        assert w.server.reads == 1


# Whose an entry is.


async def test_r34_a_private_result_is_never_served_to_another_principal() -> None:
    async with world(Server(hints={"cacheScope": "private", "ttlMs": 60_000})) as w:
        assert text(await w.get(read(A, reader("alice")))) == "0 for alice"
        assert text(await w.get(read(A, reader("bob")))) == "0 for bob"
        assert text(await w.get(read(A, reader("alice")))) == "0 for alice"
        assert w.server.reads == 2


@pytest.mark.parametrize("scope", [None, "shared", 1, ["public"]], ids=str)
async def test_r34_a_scope_that_is_not_public_is_private(scope: object) -> None:
    async with world(Server(hints={"cacheScope": scope}), ttl=MINUTE) as w:
        await w.get(read(A, reader("alice")))
        assert text(await w.get(read(A, reader("bob")))) == "0 for bob"


async def test_r34_a_public_result_is_served_to_everybody() -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(A, reader("alice")))
        assert text(await w.get(read(A, reader("bob")))) == "0 for alice"
        assert w.server.reads == 1


async def test_r34_an_upstream_that_serves_everybody_alike_is_shared_by_configuration() -> None:
    async with world(ttl=MINUTE, shared=True) as w:
        await w.get(read(A, reader("alice")))
        assert text(await w.get(read(A, reader("bob")))) == "0 for alice"


async def test_r39_sessions_with_links_of_their_own_share_nothing_even_if_public() -> None:
    async with world(Server(hints=PUBLIC), connection="session") as w:
        await w.get(read(A, session="one"))
        await w.get(read(A, session="two"))
        await w.get(read(A, session="one"))
        assert w.server.reads == 2


async def test_a_result_that_turns_private_takes_the_place_of_the_public_one() -> None:
    async with world(Server(hints=PUBLIC), stale_if_error=3600) as w:
        await w.get(read(A, reader("alice")))
        w.clock.now += 61
        w.server.hints = {"cacheScope": "private", "ttlMs": 60_000}
        await w.get(read(A, reader("alice")))
        w.server.down = True
        assert isinstance(await w.get(read(A, reader("bob"))), Failed)


# What is not kept.


@pytest.mark.parametrize("extra", [{"inputResponses": {}}, {"requestState": "s"}, {"_meta": {"x.y/z": 1}}], ids=str)
async def test_r36_a_read_whose_result_may_depend_on_more_than_its_uri_is_not_cached(extra: dict[str, object]) -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(A, extra=extra))
        await w.get(read(A, extra=extra))
        assert w.server.reads == 2
        await w.get(read(A))
        await w.get(read(A, extra=extra))
        assert w.server.reads == 4


async def test_trace_context_makes_no_difference() -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(A, extra={"_meta": {"traceparent": "00-1-1-01"}}))
        await w.get(read(A, extra={"_meta": {"traceparent": "00-2-2-01"}}))
        assert w.server.reads == 1


@pytest.mark.parametrize("uri", [7, None, "x:" + "a" * 9000, "x:" + "/" * 200], ids=["number", "null", "long", "deep"])
async def test_a_read_of_an_odd_subject_goes_straight_through(uri: object) -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(uri))
        await w.get(read(uri))
        assert w.server.reads == 2


async def test_an_error_is_not_kept() -> None:
    async with world(Server(hints=PUBLIC)) as w:
        w.server.instead = Failed(ErrorObject(INTERNAL_ERROR, "no"), Party.UPSTREAM)
        assert isinstance(await w.get(read(A)), Failed)
        w.server.instead = None
        assert text(await w.get(read(A))) == "0 for alice"


async def test_a_request_for_input_is_not_kept() -> None:
    async with world(Server(hints=PUBLIC)) as w:
        w.server.instead = InputRequired({"k": QUESTION}, None, first_level({"ttlMs": 1000, "cacheScope": "public"}))
        assert isinstance(await w.get(read(A)), InputRequired)
        w.server.instead = None
        assert text(await w.get(read(A))) == "0 for alice"


async def test_a_result_that_came_of_asking_the_client_is_not_kept() -> None:
    async with world(Server(hints=PUBLIC, question=QUESTION)) as w:
        alice = Reader(answers={"action": "accept"})
        await w.get(read(A, alice))
        await w.get(read(A, alice))
        assert w.server.reads == 2
        assert alice.asked == [QUESTION, QUESTION]


async def test_a_result_over_the_limit_of_an_entry_is_passed_on_and_not_kept() -> None:
    limits = settings.CacheLimits(max_entry_bytes=2000)
    async with world(Server(hints=PUBLIC, padding=2000), limits=limits) as w:
        assert text(await w.get(read(A))) == "0 for alice"
        await w.get(read(A))
        assert w.server.reads == 2
        w.server.padding = 10
        await w.get(read(A))
        await w.get(read(A))
        assert w.server.reads == 3


# Reading together.


async def test_r37_concurrent_reads_are_one_read_upstream() -> None:
    async with world(Server(slow=True)) as w:
        pending = [w.begin(read(A)) for _ in range(50)]
        await settled()
        assert w.server.reads == 1
        w.server.arrived[0].gate.set()
        assert await all_done(*pending) == ["0 for alice"] * 50
        assert w.metric("mcproxy_cache_reads_total", answer="coalesced") == 49
        assert w.metric("mcproxy_cache_reads_total", answer="miss") == 1


async def test_r37_if_the_first_caller_is_cancelled_the_others_do_not_suffer() -> None:
    async with world(Server(slow=True)) as w:
        leader, follower = w.begin(read(A)), w.begin(read(A))
        await settled()
        leader.scope.cancel()
        await settled()
        w.server.arrived[0].gate.set()
        assert await all_done(follower) == ["0 for alice"]
        assert leader.outcome is None
        assert w.server.reads == 1


async def test_r25_when_the_last_waiter_leaves_the_read_upstream_is_cancelled() -> None:
    async with world(Server(slow=True, hints=PUBLIC)) as w:
        pending = [w.begin(read(A)) for _ in range(3)]
        await settled()
        for each in pending:
            each.scope.cancel()
        await settled()
        assert w.server.arrived == []
        again = w.begin(read(A))
        await settled()
        w.server.arrived[0].gate.set()
        assert await all_done(again) == ["0 for alice"]


async def test_one_who_comes_just_after_all_have_left_reads_for_itself() -> None:
    async with world(Server(slow=True)) as w:
        first = w.begin(read(A))
        await settled()
        first.scope.cancel()
        second = w.begin(read(A))
        await settled()
        w.server.arrived[-1].gate.set()
        assert await all_done(second) == ["0 for alice"]


async def test_r37_an_error_is_shared() -> None:
    async with world(Server(slow=True)) as w:
        pending = [w.begin(read(A)) for _ in range(3)]
        await settled()
        w.server.arrived[0].answer(Failed(ErrorObject(RESOURCE_NOT_FOUND, "gone"), Party.UPSTREAM))
        with anyio.fail_after(GUARD):
            assert [type(await each.done()) for each in pending] == [Failed] * 3
        assert w.server.reads == 1


async def test_r34_reads_of_different_principals_are_not_one_while_the_scope_is_unknown() -> None:
    async with world(Server(slow=True)) as w:
        pending = [w.begin(read(A, reader(name))) for name in ("alice", "bob")]
        await settled()
        for arrived in list(w.server.arrived):
            arrived.gate.set()
        assert await all_done(*pending) == ["0 for alice", "0 for bob"]


async def test_r34_reads_of_different_principals_are_one_where_the_last_result_was_public() -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(A, reader("alice")))
        w.updated(A)
        w.server.slow = True
        pending = [w.begin(read(A, reader(name))) for name in ("alice", "bob", "carol")]
        await settled()
        assert len(w.server.arrived) == 1
        w.server.arrived[0].gate.set()
        assert await all_done(*pending) == ["0 for alice"] * 3


@pytest.mark.parametrize(
    "turned",
    [{"cacheScope": "private", "ttlMs": 60_000}, {}, {"padding": 2_000_000}],
    ids=["private", "unsaid", "huge"],
)
async def test_r34_a_result_that_turns_out_private_is_not_given_to_others_aboard(turned: dict[str, object]) -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(A, reader("alice")))
        w.updated(A)
        w.server.slow = True
        pending = [w.begin(read(A, reader(name))) for name in ("alice", "alice", "bob", "bob", "carol")]
        await settled()
        w.server.hints = turned
        w.server.arrived[0].gate.set()
        w.server.slow = False
        assert await all_done(*pending) == ["0 for alice"] * 2 + ["0 for bob"] * 2 + ["0 for carol"]
        assert w.server.reads == 1 + 3


async def test_r34_an_error_is_not_given_to_another_principal() -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(A, reader("alice")))
        w.updated(A)
        w.server.slow = True
        alice, bob = w.begin(read(A, reader("alice"))), w.begin(read(A, reader("bob")))
        await settled()
        w.server.slow = False
        w.server.arrived[0].answer(Failed(ErrorObject(INTERNAL_ERROR, "alice may not"), Party.UPSTREAM))
        with anyio.fail_after(GUARD):
            assert isinstance(await alice.done(), Failed)
        assert await all_done(bob) == ["0 for bob"]


async def test_a_read_that_asks_its_client_lets_the_others_go_their_own_way() -> None:
    async with world(Server(slow=True, question=None)) as w:
        first, second = Reader(answers={"action": "accept"}), Reader(answers={"action": "decline"})
        pending = [w.begin(read(A, first)), w.begin(read(A, second))]
        await settled()
        (leading,) = w.server.arrived
        with anyio.fail_after(GUARD):
            assert await leading.call.client.ask(QUESTION) == raw({"action": "accept"})
        await settled()
        assert second.asked == []
        assert len(w.server.arrived) == 2
        for arrived in list(w.server.arrived):
            arrived.gate.set()
        assert await all_done(*pending) == ["0 for alice"] * 2


async def test_a_request_for_input_is_for_the_first_caller_alone() -> None:
    async with world(Server(slow=True)) as w:
        pending = [w.begin(read(A)) for _ in range(2)]
        await settled()
        w.server.slow = False
        w.server.arrived[0].answer(InputRequired({"k": QUESTION}, None, {}))
        with anyio.fail_after(GUARD):
            assert isinstance(await pending[0].done(), InputRequired)
        assert await all_done(pending[1]) == ["0 for alice"]


async def test_progress_goes_to_all_waiters_and_log_messages_to_the_first_caller() -> None:
    async with world(Server(slow=True)) as w:
        readers = [Reader(), Reader(), Reader()]
        pending = [w.begin(read(A, each)) for each in readers]
        await settled()
        pending[1].scope.cancel()
        await settled()
        client = w.server.arrived[0].call.client
        client.notify(PROGRESS, {"progress": raw(1)})
        client.notify(LOG_MESSAGE, {"level": raw("info")})
        assert [[method for method, _ in each.notified] for each in readers] == [
            [PROGRESS, LOG_MESSAGE],
            [],
            [PROGRESS],
        ]
        w.server.arrived[0].gate.set()
        await all_done(pending[0], pending[2])


# What makes it forget.


async def test_r36_updated_forgets_that_resource_and_no_other() -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(A))
        await w.get(read("file:///b"))
        w.server.write(A)
        w.updated(A)
        assert text(await w.get(read(A))) == "1 for alice"
        await w.get(read("file:///b"))
        assert w.server.reads == 3
        assert w.metric("mcproxy_cache_invalidations_total", cause="updated") == 1


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("file:///a", "file:///a/part/of/it"),
        ("file:///a/", "file:///a/part"),
        ("file:///a", "file:///a#part"),
        ("http://host", "http://HOST/"),
        ("memo:é", "memo:%C3%A9"),
    ],
)
async def test_r63_updated_is_understood_in_other_spellings_and_of_parts(held: str, said: str) -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(held))
        w.updated(said)
        await w.get(read(held))
        assert w.server.reads == 2


async def test_updated_of_the_whole_or_of_a_namesake_leaves_the_part() -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read("file:///a/part"))
        w.updated("file:///a/par")
        w.updated("file:///a/part2")
        await w.get(read("file:///a/part"))
        assert w.server.reads == 1


async def test_r36_updated_forgets_what_every_principal_holds() -> None:
    async with world(ttl=MINUTE) as w:
        for name in ("alice", "bob"):
            await w.get(read(A, reader(name)))
        w.server.write(A)
        w.updated(A)
        assert text(await w.get(read(A, reader("alice")))) == "1 for alice"
        assert text(await w.get(read(A, reader("bob")))) == "1 for bob"


@pytest.mark.parametrize(("kind", "reads"), [(Kind.RESOURCES, 2), (Kind.TOOLS, 1), (Kind.PROMPTS, 1)])
async def test_r36_a_changed_list_of_resources_forgets_all_of_that_upstream(kind: Kind, reads: int) -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(A))
        w.cache.on_event(UpstreamChanged(NAME, None, ListChanged(kind)))
        await w.get(read(A))
        assert w.server.reads == reads


async def test_r36_events_of_another_upstream_change_nothing() -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(A))
        w.cache.on_event(UpstreamChanged("other", None, ResourceUpdated(A)))
        w.cache.on_event(Retired("other", None))
        await w.get(read(A))
        assert w.server.reads == 1


async def test_r36_a_lost_connection_forgets() -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(A))
        w.lost()
        w.connected()
        await w.get(read(A))
        assert w.server.reads == 2


async def test_r36_a_connection_made_anew_without_a_word_of_loss_forgets() -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(A))
        w.connected()
        await w.get(read(A))
        assert w.server.reads == 2


async def test_r36_the_loss_of_one_sessions_link_is_nothing_to_another() -> None:
    async with world(Server(hints=PUBLIC), connection="session") as w:
        await w.get(read(A, session="one"))
        await w.get(read(A, session="two"))
        w.lost("one")
        await w.get(read(A, session="two"))
        assert w.server.reads == 2
        await w.get(read(A, session="one"))
        assert w.server.reads == 3


async def test_r49_a_retired_upstream_leaves_nothing_not_even_for_need() -> None:
    async with world(Server(hints=PUBLIC), stale_if_error=3600) as w:
        await w.get(read(A))
        w.cache.on_event(Retired(NAME, None))
        w.server.down = True
        assert isinstance(await w.get(read(A)), Failed)
        assert w.metric("mcproxy_cache_entries") == 0
        assert w.metric("mcproxy_cache_bytes") == 0


async def test_a_call_of_a_tool_that_may_write_forgets_where_that_is_configured() -> None:
    async with world(Server(hints=PUBLIC), invalidate_on_tool_calls=True, read_only=frozenset({"look"})) as w:
        await w.get(read(A))
        await w.get(tool("look"))
        await w.get(read(A))
        assert w.server.reads == 1
        await w.get(tool("write"))
        await w.get(read(A))
        assert w.server.reads == 2
        assert w.server.tool_calls == 2


async def test_a_call_of_a_tool_forgets_nothing_where_it_is_not_configured() -> None:
    async with world(Server(hints=PUBLIC)) as w:
        await w.get(read(A))
        await w.get(tool("write"))
        await w.get(read(A))
        assert w.server.reads == 1


@pytest.mark.parametrize("cause", ["updated", "list_changed", "lost", "tool"])
async def test_r35_a_fetch_under_way_is_answered_but_not_kept_and_not_joined_any_more(cause: str) -> None:
    async with world(Server(hints=PUBLIC, slow=True), invalidate_on_tool_calls=True) as w:
        before = [w.begin(read(A)), w.begin(read(A))]
        await settled()
        old = w.server.arrived[0]
        old.outcome = w.server.result(old.call, A)
        w.server.write(A)
        match cause:
            case "updated":
                w.updated(A)
            case "list_changed":
                w.cache.on_event(UpstreamChanged(NAME, None, ListChanged(Kind.RESOURCES)))
            case "lost":
                w.lost()
            case _:
                await w.get(tool("write"))
        after = w.begin(read(A))
        await settled()
        assert len(w.server.arrived) == 2
        old.gate.set()
        assert await all_done(*before) == ["0 for alice"] * 2
        w.server.arrived[0].gate.set()
        assert await all_done(after) == ["1 for alice"]
        assert text(await w.get(read(A))) == "1 for alice"
        assert w.server.reads == 2


async def test_r35_an_old_fetch_that_lands_last_does_not_displace_the_new_entry() -> None:
    async with world(Server(hints=PUBLIC, slow=True)) as w:
        before = w.begin(read(A))
        await settled()
        old = w.server.arrived[0]
        old.outcome = w.server.result(old.call, A)
        w.server.write(A)
        w.updated(A)
        after = w.begin(read(A))
        await settled()
        w.server.arrived[1].gate.set()
        await all_done(after)
        old.gate.set()
        await all_done(before)
        assert text(await w.get(read(A))) == "1 for alice"
        assert w.server.reads == 2


# Coherent mode.


async def test_a_watched_entry_outlives_every_ttl_until_the_upstream_says_otherwise() -> None:
    async with world(Server(hints={"ttlMs": 0}), coherent=True) as w:
        await w.get(read(A))
        await settled()
        assert list(w.table.held.values()) == [A]
        await w.get(read(A))
        w.clock.now += 1e9
        await w.get(read(A))
        assert w.server.reads == 2
        w.server.write(A)
        w.updated(A)
        assert text(await w.get(read(A))) == "1 for alice"
        w.clock.now += 1e9
        assert text(await w.get(read(A))) == "1 for alice"
        assert w.server.reads == 3
        assert len(w.table.held) == 1


async def test_what_was_read_before_the_watch_was_confirmed_lives_by_its_ttl_alone() -> None:
    async with world(coherent=True) as w:
        w.table.slow = True
        await w.get(read(A))
        await settled()
        await w.get(read(A))
        assert w.server.reads == 2
        w.server.slow = True
        pending = w.begin(read(A))
        await settled()
        (confirm,) = w.table.waiting.values()
        confirm.set()
        await settled()
        w.server.arrived[0].gate.set()
        await all_done(pending)
        w.server.slow = False
        await w.get(read(A))
        assert w.server.reads == 4
        await w.get(read(A))
        assert w.server.reads == 4


async def test_where_the_upstream_refuses_to_be_watched_entries_live_by_their_ttl() -> None:
    async with world(coherent=True, ttl=MINUTE) as w:
        w.table.refuses = True
        await w.get(read(A))
        await settled()
        await w.get(read(A))
        assert w.server.reads == 1
        w.clock.now += 60
        await w.get(read(A))
        assert w.server.reads == 2


async def test_an_upstream_that_offers_no_subscriptions_is_not_asked_for_one() -> None:
    async with world(Server(subscribable=False), coherent=True) as w:
        await w.get(read(A))
        await settled()
        assert w.table.held == {}


async def test_a_link_of_a_session_alone_is_not_watched() -> None:
    async with world(coherent=True, connection="session") as w:
        await w.get(read(A, session="one"))
        await settled()
        assert w.table.held == {}


async def test_the_least_used_watch_gives_way_and_what_it_kept_right_goes_with_it() -> None:
    async with world(coherent=True, max_watched=2) as w:
        uris = ["file:///1", "file:///2"]
        for uri in uris * 2:
            await w.get(read(uri))
            await settled()
        await w.get(read("file:///1"))
        await w.get(read("file:///3"))
        await settled()
        assert sorted(w.table.held.values()) == ["file:///1", "file:///3"]
        reads = w.server.reads
        await w.get(read("file:///1"))
        assert w.server.reads == reads
        await w.get(read("file:///2"))
        assert w.server.reads == reads + 1


async def test_a_lost_link_ends_every_watch_and_the_next_read_makes_a_new_one() -> None:
    async with world(coherent=True) as w:
        for _ in range(2):
            await w.get(read(A))
            await settled()
        w.lost()
        assert w.table.held == {}
        w.connected()
        await w.get(read(A))
        await settled()
        assert list(w.table.held.values()) == [A]
        assert w.server.reads == 3


async def test_a_watch_confirmed_only_after_the_link_was_lost_is_given_back() -> None:
    async with world(coherent=True) as w:
        w.table.slow = True
        await w.get(read(A))
        await settled()
        w.lost()
        w.connected()
        (confirm,) = w.table.waiting.values()
        confirm.set()
        await settled()
        assert w.table.held == {}
        await w.get(read(A))
        await w.get(read(A))
        assert w.server.reads == 3


async def test_a_read_during_which_its_watch_gave_way_lives_by_its_ttl_alone() -> None:
    async with world(coherent=True, max_watched=1) as w:
        await w.get(read(A))
        await settled()
        w.server.slow = True
        pending = w.begin(read(A))
        await settled()
        w.server.slow, w.table.slow = False, True
        await w.get(read("file:///other"))
        w.server.arrived[0].gate.set()
        await all_done(pending)
        w.server.write(A)
        assert text(await w.get(read(A))) == "1 for alice"


async def test_while_the_upstream_goes_unheard_nothing_is_kept_right_by_being_watched() -> None:
    async with world(coherent=True) as w:
        for _ in range(2):
            await w.get(read(A))
            await settled()
        w.hears(PushChannel.LOST)
        assert w.table.held == {}
        for version in range(1, 4):
            w.server.write(A)
            assert text(await w.get(read(A))) == f"{version} for alice"
            await settled()
        assert w.table.held == {}
        w.hears(PushChannel.RESTORED)
        for _ in range(4):
            await w.get(read(A))
            await settled()
        assert list(w.table.held.values()) == [A]
        assert w.server.reads == 7
        assert w.metric("mcproxy_cache_invalidations_total", cause="unheard") == 1


async def test_r35_a_read_under_way_as_the_upstream_goes_unheard_is_not_kept() -> None:
    async with world(coherent=True) as w:
        await w.get(read(A))
        await settled()
        w.server.slow = True
        pending = w.begin(read(A))
        await settled()
        w.hears(PushChannel.LOST)
        w.hears(PushChannel.RESTORED)
        w.server.slow = False
        w.server.arrived[0].gate.set()
        await all_done(pending)
        w.server.write(A)
        assert text(await w.get(read(A))) == "1 for alice"


async def test_a_connection_that_is_made_anew_is_heard() -> None:
    async with world(coherent=True) as w:
        w.hears(PushChannel.LOST)
        w.lost()
        w.connected()
        await w.get(read(A))
        await settled()
        assert list(w.table.held.values()) == [A]


async def test_that_one_sessions_link_goes_unheard_is_nothing_to_what_all_share() -> None:
    async with world(coherent=True) as w:
        for _ in range(2):
            await w.get(read(A))
            await settled()
        w.hears(PushChannel.LOST, "one")
        await w.get(read(A))
        assert w.server.reads == 2


# Stale if error.


async def test_a_stale_entry_is_served_while_the_upstream_is_down_and_is_marked() -> None:
    async with world(Server(hints=PUBLIC), stale_if_error=300) as w:
        await w.get(read(A))
        w.server.down = True
        w.clock.now += 90
        stale = members(await w.get(read(A)))
        assert stale["_meta"] == {META_STALE: {"forMs": 30_000}}
        assert stale["ttlMs"] == 0
        assert w.metric("mcproxy_cache_reads_total", answer="stale") == 1
        w.clock.now += 270
        assert isinstance(await w.get(read(A)), Failed)


async def test_a_stale_entry_is_served_at_once_where_the_link_is_known_to_be_down() -> None:
    async with world(Server(hints=PUBLIC), stale_if_error=300) as w:
        await w.get(read(A))
        w.lost()
        w.clock.now += 299
        assert "_meta" in members(await w.get(read(A)))
        assert w.server.reads == 1
        w.connected()
        assert "_meta" not in members(await w.get(read(A)))
        assert w.server.reads == 2


async def test_the_mark_keeps_what_meta_held_and_a_malformed_one_does_no_harm() -> None:
    for meta, kept in (({"a.b/c": 1}, {"a.b/c": 1}), ([], {})):
        async with world(Server(hints={**PUBLIC, "_meta": meta}), stale_if_error=300) as w:
            await w.get(read(A))
            w.lost()
            assert members(await w.get(read(A)))["_meta"] == {**kept, META_STALE: {"forMs": 0}}


async def test_an_upstream_that_does_not_answer_in_time_counts_as_down() -> None:
    async with world(Server(hints=PUBLIC), stale_if_error=300) as w:
        await w.get(read(A))
        w.clock.now += 61
        w.server.instead = Failed(ErrorObject(INTERNAL_ERROR, "too slow"), Party.UPSTREAM, Reason.TIMEOUT)
        assert META_STALE in str(members(await w.get(read(A))))


async def test_an_answer_that_the_resource_is_gone_is_no_outage_and_ends_the_stale_entry() -> None:
    async with world(Server(hints=PUBLIC), stale_if_error=300) as w:
        await w.get(read(A))
        w.clock.now += 61
        w.server.instead = Failed(ErrorObject(RESOURCE_NOT_FOUND, "gone"), Party.UPSTREAM)
        assert isinstance(await w.get(read(A)), Failed)
        w.server.instead = None
        w.server.down = True
        assert isinstance(await w.get(read(A)), Failed)


async def test_r36_what_the_upstream_said_is_out_of_date_is_not_served_in_need_either() -> None:
    async with world(Server(hints=PUBLIC), stale_if_error=300) as w:
        await w.get(read(A))
        w.updated(A)
        w.lost()
        w.server.down = True
        assert isinstance(await w.get(read(A)), Failed)


async def test_an_entry_that_another_read_brought_meanwhile_is_given_as_fresh() -> None:
    async with world(Server(hints=PUBLIC, slow=True)) as w:
        alice, bob = w.begin(read(A, reader("alice"))), w.begin(read(A, reader("bob")))
        await settled()
        first, second = w.server.arrived
        first.gate.set()
        await all_done(alice)
        second.answer(DOWN)
        assert await all_done(bob) == ["0 for alice"]
        assert "_meta" not in members(await bob.done())


# Bounds.


async def test_memory_stays_within_the_limit_of_the_upstream_and_the_least_used_goes() -> None:
    async with world(Server(hints=PUBLIC, padding=1000), max_bytes=20_000) as w:
        hot = "file:///hot"
        await w.get(read(hot))
        for number in range(200):
            await w.get(read(f"file:///{number}"))
            await w.get(read(hot))
            assert w.metric("mcproxy_cache_bytes") <= 20_000
        assert w.server.reads == 201
        assert w.metric("mcproxy_cache_entries") > 3
        assert w.metric("mcproxy_cache_evictions_total") == 201 - w.metric("mcproxy_cache_entries")


async def test_memory_stays_within_the_limit_of_all_together() -> None:
    limits = settings.CacheLimits(max_bytes=10_000)
    async with world(Server(hints=PUBLIC, padding=1000), limits=limits) as w:
        for number in range(50):
            await w.get(read(f"file:///{number}"))
            assert w.metric("mcproxy_cache_bytes") <= 10_000
        assert w.metric("mcproxy_cache_entries") > 1


async def test_while_the_cache_does_not_run_every_read_goes_straight_through() -> None:
    async with world(Server(hints=PUBLIC, slow=True)) as w:
        pending = w.begin(read(A))
        await settled()
        w.running.cancel()
        await settled()
        w.server.arrived[-1].gate.set()
        assert await all_done(pending) == ["0 for alice"]
        w.server.slow = False
        await w.get(read(A))
        await w.get(read(A))
        assert w.server.reads == 4


# Put together.


def counting(upstream: FakeUpstream) -> FakeUpstream:
    """Its one resource counts how often it was read."""

    def answer(call: Call) -> Complete:
        contents = [{"uri": A, "text": str(upstream.count("resources/read"))}]
        return Complete(first_level({"contents": contents, "cacheScope": "public"}))

    upstream.answers["resources/read"] = answer
    for method in ("resources/subscribe", "resources/unsubscribe", "tools/call"):
        upstream.answers[method] = lambda call: Complete({})
    return upstream


async def test_a_client_that_reads_upon_hearing_of_a_change_gets_what_changed() -> None:
    async with house(counting(FakeUpstream("fs")), options={"fs": {"cache": {"ttl": MINUTE}}}) as h:
        await h.ready()
        listener = h.listener()
        uri = f"fs+{A}"
        await h.call("resources/subscribe", listener=listener, uri=uri)
        assert text(await h.call("resources/read", uri=uri)) == "1"
        assert text(await h.call("resources/read", uri=uri)) == "1"
        h["fs"].announce(ResourceUpdated(A))
        await listener.hears(ResourceUpdated(uri))
        assert text(await h.call("resources/read", uri=uri)) == "2"


async def test_r21_the_caches_subscription_counts_among_the_clients() -> None:
    async with house(counting(FakeUpstream("fs")), options={"fs": {"cache": {"coherent": True}}}) as h:
        await h.ready()
        listener = h.listener()
        uri = f"fs+{A}"
        for _ in range(3):
            await h.call("resources/read", uri=uri)
            await settled()
        assert h["fs"].count("resources/read") == 2
        await h.call("resources/subscribe", listener=listener, uri=uri)
        h.gateway.leave(listener)
        await settled()
        assert h["fs"].count("resources/subscribe") == 1
        assert h["fs"].count("resources/unsubscribe") == 0


async def test_a_tool_is_read_only_where_the_upstream_lists_it_so() -> None:
    upstream = counting(FakeUpstream("fs"))
    upstream.lists[Kind.TOOLS] = [
        {"name": "look", "annotations": {"readOnlyHint": True}},
        {"name": "write"},
        {"name": "odd", "annotations": {"readOnlyHint": "yes"}},
    ]
    cache = {"ttl": MINUTE, "invalidate_on_tool_calls": True}
    async with house(upstream, options={"fs": {"cache": cache}}) as h:
        await h.ready()
        for tool_name, reads in (("look", 1), ("write", 2), ("odd", 3), ("look", 3)):
            await h.call("resources/read", uri=f"fs+{A}")
            await h.call("tools/call", name=f"fs__{tool_name}")
            await h.call("resources/read", uri=f"fs+{A}")
            assert upstream.count("resources/read") == reads


async def test_what_another_process_heard_or_did_forgets_reads_and_is_told_to_no_client() -> None:
    upstream, writes = counting(FakeUpstream("fs")), list[str]()
    upstream.lists[Kind.TOOLS] = [{"name": "write"}]
    async with house(upstream, options={"fs": {"cache": {"ttl": MINUTE, "invalidate_on_tool_calls": True}}}) as h:
        await h.ready()
        h.gateway.tell_writes(writes.append)
        listener = h.listener()
        await h.call("resources/subscribe", listener=listener, uri=f"fs+{A}")
        forgetting: tuple[Callable[[], None], ...] = (
            lambda: h.gateway.take_note(UpstreamChanged("fs", None, ResourceUpdated(A))),
            lambda: h.gateway.take_note(UpstreamChanged("fs", None, ListChanged(Kind.RESOURCES))),
            lambda: h.gateway.forget_reads("another"),
            lambda: h.gateway.forget_reads("fs"),
            lambda: h.gateway.forget_reads(),
        )
        for forget, reads in zip(forgetting, (1, 2, 3, 3, 4), strict=True):
            await h.call("resources/read", uri=f"fs+{A}")
            assert upstream.count("resources/read") == reads
            forget()
        assert listener.changes == []
        assert writes == []
        await h.call("tools/call", name="fs__write")
        assert writes == ["fs"]


async def test_a_crash_below_a_read_fails_that_read_and_nothing_else() -> None:
    def crash(call: Call) -> Complete:
        raise ZeroDivisionError

    async with house(counting(FakeUpstream("fs")), options={"fs": {"cache": {"ttl": MINUTE}}}) as h:
        await h.ready()
        answer, h["fs"].answers["resources/read"] = h["fs"].answers["resources/read"], crash
        assert isinstance(await h.call("resources/read", uri=f"fs+{A}"), Failed)
        h["fs"].answers["resources/read"] = answer
        assert text(await h.call("resources/read", uri=f"fs+{A}")) == "2"
