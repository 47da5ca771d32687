"""The twin of `mcproxy.cluster.oauth.renewals`: replicas that ask each other over real connections, and an
authorization server whose refresh tokens are good once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from mcproxy.cluster.envelope import Envelopes, HopEnvelope
from mcproxy.cluster.hop import Hops
from mcproxy.cluster.listener import AnswerReplica, InternalListener
from mcproxy.cluster.members import Member, chosen
from mcproxy.cluster.oauth.grants import SharedGrants, opaque_name
from mcproxy.cluster.oauth.renewals import INQUIRY, QUESTION, InquiryTimeouts, Renewals
from mcproxy.cluster.store.protocol import Store
from mcproxy.cluster.store.redis_store import opened_store
from mcproxy.http import server as http
from mcproxy.sealing import Sealer
from mcproxy.settings import Cluster, Proxy
from mcproxy.settings.upstreams.oauth import OAuthSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.oauth.flow import OAuthFlow
from mcproxy.upstream.oauth.grants import Grant, GrantKey, Renewal
from mcproxy.upstream.oauth.tokens import TokenRefused, TokenUnavailable
from tests.cluster.conftest import RedisProxy, RedisServer
from tests.cluster.oauth.test_grants import Interrupted
from tests.fakes.authorization import Authorization, authorization
from tests.ports import free_port
from tests.timeouts import GUARD
from tests.upstream.oauth.test_flow import ITSELF, logged_in

pytestmark = pytest.mark.anyio

KEY = GrantKey("up")
NEVER = 10 * GUARD
"""Seconds that no test waits for."""


@dataclass
class Circle:
    """Implements `RenewingMembers`: the replicas as one of them sees them."""

    own: str
    present: dict[str, Member]
    lost: list[str] = field(default_factory=list)
    are_known: bool = True
    disagrees: bool = False
    """Whether each takes itself for the home."""

    def owner(self, key: str) -> Member | None:
        if self.disagrees:
            return None
        label = chosen(key, self.present)
        return None if label == self.own else self.present[label]

    def all(self) -> list[Member]:
        return list(self.present.values())

    def lose(self, label: str) -> None:
        self.lost.append(label)
        self.present.pop(label, None)

    def note_leaving(self, label: str) -> None:
        self.lose(label)


@dataclass
class Peer:
    """One replica, as far as it renews grants."""

    sealer: Sealer
    grants: SharedGrants
    flow: OAuthFlow
    renewals: Renewals
    listener: InternalListener
    inquiries: dict[str, AnswerReplica]
    """What its listener answers inquiries by."""
    circle: Circle
    metrics: Metrics
    timeouts: InquiryTimeouts
    now: float = 0

    async def renew(self, grant: Grant | None) -> Grant:
        return await self.renewals.renew(self.flow, Renewal(KEY, grant))


@asynccontextmanager
async def peers(
    server: Authorization, store: Store, settings: OAuthSettings | None = None
) -> AsyncIterator[list[Peer]]:
    """Three, that know each other; the home of the grant is the first."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(_peer(server, store, label, settings)) for label in "abc"]
        known = {peer.sealer.label: peer.circle.present[peer.sealer.label] for peer in made}
        for peer in made:
            peer.circle.present.update(known)
        home = chosen(f"grant {opaque_name(*KEY)}", "abc")
        yield sorted(made, key=lambda peer: peer.sealer.label != home)


@asynccontextmanager
async def _peer(server: Authorization, store: Store, label: str, settings: OAuthSettings | None) -> AsyncIterator[Peer]:
    async def serve(request: http.Request, envelope: HopEnvelope) -> http.Answered:
        return http.Response(404)

    sealer, metrics = Sealer(b"secret", label=label), Metrics()
    grants, envelopes = SharedGrants(store, sealer), Envelopes(sealer)
    flow = OAuthFlow("up", server.url, settings or OAuthSettings(), grants)
    timeouts = InquiryTimeouts(GUARD, GUARD)
    renewals = Renewals(store, sealer, grants, metrics, lambda: peer.now, timeouts)
    questions: dict[str, AnswerReplica] = {QUESTION: renewals.answer}
    inquiries: dict[str, AnswerReplica] = {INQUIRY: renewals.answer_inquiry}
    listener = InternalListener(envelopes, serve, Proxy, questions, inquiries)
    async with listener.listening(Cluster(listen="127.0.0.1:0"), None) as port:
        own = Member(label, f"http://127.0.0.1:{port}", "", "", "")
        circle = Circle(label, {label: own})
        peer = Peer(sealer, grants, flow, renewals, listener, inquiries, circle, metrics, timeouts)
        with closing(Hops(metrics)) as hops:
            find: Callable[[str], OAuthFlow | None] = lambda name: flow if name == "up" else None  # noqa: E731
            renewals.serve_with(peer.circle, envelopes, hops, find, 1.0)
            yield peer


@asynccontextmanager
async def running(
    settings: OAuthSettings | None = None, **server: Any
) -> AsyncIterator[tuple[Authorization, Interrupted, list[Peer]]]:
    store = Interrupted()
    with anyio.fail_after(GUARD):
        async with authorization(**server) as at, peers(at, store, settings) as made:
            yield at, store, made


def asked(server: Authorization) -> int:
    return sum(form["grant_type"] == "refresh_token" for form in server.token_requests)


async def test_each_replica_that_wants_the_next_token_gets_the_one_that_the_home_redeemed() -> None:
    async with running() as (server, _, (home, b, c)):
        grant = await logged_in(home.flow)
        renewed = await asyncio.gather(*(peer.renew(grant) for peer in (home, b, c) for _ in range(20)))
        assert {each.token.access for each in renewed} == {"access-token-2"}
        assert asked(server) == 1
        assert [_granted(peer) for peer in (home, b, c)] == [1, 0, 0], "counted where it was made"


def _granted(peer: Peer) -> float:
    return (
        peer.metrics.registry.get_sample_value(
            "mcproxy_oauth_token_requests_total", {"upstream": "up", "outcome": "granted"}
        )
        or 0.0
    )


async def test_replicas_that_do_not_know_each_other_yet_redeem_a_refresh_token_once_even_so() -> None:
    async with running() as (server, _, made):
        grant = await logged_in(made[0].flow)
        for peer in made:
            peer.circle.present = {peer.circle.own: peer.circle.present[peer.circle.own]}
        renewed = await asyncio.gather(*(peer.renew(grant) for peer in made))
        assert {each.token.access for each in renewed} == {"access-token-2"}
        assert asked(server) == 1


async def test_a_token_that_no_person_logged_in_for_is_requested_by_the_home_alone() -> None:
    async with running(ITSELF) as (server, _, made):
        first = await asyncio.gather(*(peer.renew(None) for peer in made))
        assert {grant.generation for grant in first} == {1}
        second = await asyncio.gather(*(peer.renew(first[0]) for peer in made))
        assert {grant.generation for grant in second} == {2}
        assert len(server.token_requests) == 2


async def test_a_home_that_cannot_be_reached_or_leaves_is_replaced_by_the_next() -> None:
    async with running() as (server, _, (home, b, c)):
        grant = await logged_in(home.flow)
        gone = replace(home.circle.present[home.circle.own], address=f"http://127.0.0.1:{free_port()}")
        b.circle.present[gone.label] = gone
        home.listener.drain()
        renewed = await asyncio.gather(b.renew(grant), c.renew(grant))
        assert {each.token.access for each in renewed} == {"access-token-2"}
        assert b.circle.lost == c.circle.lost == [gone.label]
        assert asked(server) == 1


async def test_the_claim_of_a_live_replica_holds_and_that_of_one_that_is_gone_ends_after_a_while() -> None:
    async with running() as (server, store, (home, b, _)):
        grant = await logged_in(home.flow)
        claim = f"renewal:{opaque_name(*KEY)}"
        await store.put(claim, b.circle.own.encode(), 60)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(home.renew, grant)
            for looks in range(1, 5):
                home.now += 2
                await store.claimed(looks)
            assert asked(server) == 0, "its holder is among the members"
            del home.circle.present[b.circle.own]
            home.circle.are_known = False
            for looks in range(5, 9):
                home.now += 2
                await store.claimed(looks)
            assert asked(server) == 0, "who the members are is not known yet"
            home.circle.are_known = True
            while not asked(server):
                home.now += 0.6
                await anyio.sleep(0.02)
        assert await store.get(claim) is None


async def test_while_the_store_is_away_the_home_alone_decides_and_tells_the_others() -> None:
    async with running() as (server, store, (home, b, c)):
        grant = await logged_in(home.flow)
        store.is_away = True
        renewed = await asyncio.gather(*(peer.renew(grant) for peer in (b, c, home)))
        assert {each.token.access for each in renewed} == {"access-token-2"}
        assert asked(server) == 1
        again = await asyncio.gather(*(peer.renew(renewed[0]) for peer in (b, c)))
        assert {each.token.access for each in again} == {"access-token-3"}
        assert await b.grants.load(KEY) == again[0]


@pytest.mark.parametrize("is_lost", [True, False])
async def test_r65_a_home_that_dies_before_it_could_store_a_pair_has_told_the_others(*, is_lost: bool) -> None:
    async with running() as (server, store, (home, b, c)):
        grant = await logged_in(home.flow)
        store.is_away = True
        assert (await home.renew(grant)).token.access == "access-token-2"
        for peer in (b, c):
            del peer.circle.present[home.circle.own]
        store.is_away = False
        if is_lost:
            await store.remove(f"grant:{opaque_name(*KEY)}")
        await b.grants.settle()
        stored = await SharedGrants(store, c.sealer).load(KEY)
        assert stored is not None
        assert stored.token.access == "access-token-2"
        assert (await c.renew(grant)).token.access == "access-token-2"
        assert (await c.renew(stored)).token.access == "access-token-3"
        assert asked(server) == 2


async def test_a_pair_that_is_told_to_others_brings_back_no_login_that_was_taken_back() -> None:
    async with running() as (_, store, (home, b, _c)):
        grant = await logged_in(home.flow)
        store.is_away = True
        await b.grants.delete(KEY)
        await home.renew(grant)
        assert await b.grants.load(KEY) is None
        store.is_away = False
        await b.grants.settle()
        await home.grants.settle()
        assert await SharedGrants(store, b.sealer).load(KEY) is None


async def test_a_pair_that_is_stored_is_told_to_nobody() -> None:
    async with running() as (_, _store, (home, b, _c)):
        grant = await logged_in(home.flow)
        await home.renew(grant)
        assert b.grants.latest(KEY) is None


async def test_a_refusal_and_an_outage_at_the_home_are_told_as_such() -> None:
    async with running() as (server, _, (home, b, _c)):
        grant = await logged_in(home.flow)
        server.outage = 503
        with pytest.raises(TokenUnavailable):
            await b.renew(grant)
        server.outage = None
        server.forget_refresh_tokens()
        with pytest.raises(TokenRefused):
            await b.renew(grant)


async def test_a_grant_that_was_taken_back_is_not_renewed() -> None:
    async with running() as (server, _, (home, b, _c)):
        grant = await logged_in(home.flow)
        await home.grants.delete(KEY)
        with pytest.raises(TokenRefused, match="revoked"):
            await b.renew(grant)
        assert asked(server) == 0


async def test_a_home_without_that_upstream_leaves_it_to_who_asks() -> None:
    async with running() as (server, _, (home, b, _c)):
        grant = await logged_in(home.flow)
        home.renewals._flow = lambda name: None
        assert (await b.renew(grant)).token.access == "access-token-2"
        assert asked(server) == 1


async def test_r65_a_replica_that_hangs_up_does_not_break_off_what_the_home_redeems() -> None:
    async with running() as (server, _, (home, b, _c)):
        grant = await logged_in(home.flow)
        server.hold = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(b.renew, grant)
            await server.asked(2)
            tasks.cancel_scope.cancel()
        server.hold.set()
        assert (await home.renew(grant)).token.access == "access-token-2"
        assert asked(server) == 1


async def test_a_replica_that_stops_waits_for_no_other() -> None:
    async with running() as (server, store, (home, b, _)):
        grant = await logged_in(home.flow)
        await store.put(f"renewal:{opaque_name(*KEY)}", b.circle.own.encode(), 60)
        refused: list[TokenUnavailable] = []

        async def renew() -> None:
            with pytest.raises(TokenUnavailable, match="stopping") as caught:
                await home.renew(grant)
            refused.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(renew)
            await store.claimed(1)
            home.renewals.close()
        assert len(refused) == 1
        assert asked(server) == 0


@asynccontextmanager
async def disagreeing(
    redis_server: RedisServer,
) -> AsyncIterator[tuple[Authorization, RedisProxy, list[Peer]]]:
    """Replicas that know each other and share a real Redis, each of which takes itself for the home of the grant."""
    await redis_server.start()
    proxy = RedisProxy(redis_server.port)
    with anyio.fail_after(GUARD):
        async with (
            proxy.serving() as url,
            opened_store(url, GUARD) as store,
            authorization() as server,
            peers(server, store) as made,
        ):
            for peer in made:
                peer.circle.disagrees = True
            yield server, proxy, made


async def renewed_by_all(made: list[Peer], grant: Grant) -> Grant:
    """What several callers at each of the replicas get."""
    got = await asyncio.gather(*(peer.renew(grant) for peer in made for _ in range(5)))
    assert len({each.token.access for each in got}) == 1
    return got[0]


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_pair_that_waits_to_be_stored_when_redis_is_back_is_redeemed_once(
    redis_server: RedisServer, *, is_lost: bool
) -> None:
    async with disagreeing(redis_server) as (server, proxy, made):
        first = await logged_in(made[0].flow)
        assert [await peer.grants.load(KEY) for peer in made] == [first] * 3
        proxy.refuse()
        if is_lost:
            redis_server.stop()
        assert (await made[1].renew(first)).token.access == "access-token-2"
        if is_lost:
            await redis_server.start()
        proxy.admit()
        second = await renewed_by_all(made, first)
        assert second.token.access == "access-token-2"
        assert (await renewed_by_all(made, second)).token.access == "access-token-3"
        assert asked(server) == 2


async def test_while_redis_is_away_replicas_that_disagree_redeem_a_refresh_token_once(
    redis_server: RedisServer,
) -> None:
    async with disagreeing(redis_server) as (server, proxy, made):
        grant = await logged_in(made[0].flow)
        assert [await peer.grants.load(KEY) for peer in made] == [grant] * 3
        proxy.refuse()
        for generation in range(2, 6):
            grant = await renewed_by_all(made, grant)
            assert grant.token.access == f"access-token-{generation}"
        assert asked(server) == 4


async def test_a_refresh_token_is_redeemed_once_though_redis_loses_the_claim_meanwhile(
    redis_server: RedisServer,
) -> None:
    async with disagreeing(redis_server) as (server, _, made):
        grant = await logged_in(made[0].flow)
        assert [await peer.grants.load(KEY) for peer in made] == [grant] * 3
        server.hold = anyio.Event()
        answers: list[Grant] = []

        async def renew(peer: Peer) -> None:
            answers.append(await peer.renew(grant))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(renew, made[0])
            await server.asked(2)
            redis_server.stop()
            await redis_server.start()
            inquired = anyio.Event()

            async def informing(question: bytes) -> bytes:
                inquired.set()
                return await made[0].renewals.answer_inquiry(question)

            made[0].inquiries[INQUIRY] = informing
            for peer in made[1:]:
                tasks.start_soon(renew, peer)
            await inquired.wait()
            server.hold.set()
        assert {each.token.access for each in answers} == {"access-token-2"}
        assert asked(server) == 1


async def test_a_replica_that_shuts_down_tells_of_the_pair_that_it_could_not_store(
    redis_server: RedisServer,
) -> None:
    async with disagreeing(redis_server) as (server, proxy, (a, b, _)):
        grant = await logged_in(a.flow)
        assert await b.grants.load(KEY) == grant
        proxy.refuse()
        await a.renew(grant)
        a.listener.drain()
        assert (await b.renew(grant)).token.access == "access-token-2"
        assert asked(server) == 1


async def never(question: bytes) -> bytes:
    """How a frozen replica answers an inquiry."""
    await anyio.sleep_forever()
    raise AssertionError


async def test_a_replica_that_does_not_answer_holds_up_no_renewal() -> None:
    async with running() as (server, _, (home, b, _c)):
        grant = await logged_in(home.flow)
        b.inquiries[INQUIRY] = never
        home.timeouts.first = 0.1
        assert (await home.renew(grant)).token.access == "access-token-2"
        assert asked(server) == 1


@pytest.mark.parametrize("asks", [True, False])
async def test_a_frozen_replica_has_less_time_until_it_is_heard_of_again(asks: bool) -> None:
    async with running() as (server, _, (home, b, _c)):

        def timeouts(first: float, silent: float) -> None:
            home.timeouts.first, home.timeouts.silent = first, silent

        grant = await logged_in(home.flow)
        b.inquiries[INQUIRY] = never
        timeouts(0.1, NEVER)
        grant = await home.renew(grant)
        timeouts(NEVER, 0.1)
        grant = await home.renew(grant)
        if asks:
            await b.renewals._inquire(KEY)
        else:
            b.inquiries[INQUIRY] = b.renewals.answer_inquiry
            timeouts(NEVER, NEVER)
            grant = await home.renew(grant)
            b.inquiries[INQUIRY] = never
        timeouts(0.1, NEVER)
        grant = await home.renew(grant)
        assert asked(server) == (3 if asks else 4)
