"""What one replica tells and the others hear, in both stores, and what they do where some of it was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from mcproxy.call.clients import ListChanged, Notice, ResourceUpdated
from mcproxy.call.upstreams import Disconnected, UpstreamChanged
from mcproxy.cluster.events import (
    MAX_PENDING,
    STREAM,
    Arrival,
    ClusterEvent,
    ClusterEvents,
    Senders,
    SessionEnded,
    StaleAccess,
    StaleList,
    StaleReads,
    StaleResource,
    upstream_change,
)
from mcproxy.cluster.store.protocol import Store, StoreUnavailable, StreamPosition
from mcproxy.cluster.store.redis_store import opened_store
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.protocol.methods import Kind
from mcproxy.sealing import Sealer
from mcproxy.telemetry.metrics import Metrics
from tests.cluster.conftest import RedisServer
from tests.fakes.local_store import LocalStore
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

MARKER = "marker "


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "memory":
        return LocalStore()
    found: Store = request.getfixturevalue("redis_store")
    return found


@dataclass
class Hearing:
    """Implements `Hearer`: keeps what it hears."""

    heard: list[ClusterEvent] = field(default_factory=list)
    gaps: int = 0
    markers: set[str] = field(default_factory=set)
    _news: Wakeup = field(default_factory=Wakeup)

    def on_cluster_event(self, event: ClusterEvent) -> None:
        if isinstance(event, SessionEnded) and event.key.startswith(MARKER):
            self.markers.add(event.key)
        else:
            self.heard.append(event)
        self._news.notify_all()

    def on_gap(self) -> None:
        self.gaps += 1
        self._news.notify_all()

    async def until(self, condition: Callable[[Hearing], bool]) -> None:
        with anyio.fail_after(GUARD):
            while not condition(self):
                await self._news.wait()

    async def hears(self, event: ClusterEvent) -> None:
        await self.until(lambda it: event in it.heard)


@dataclass
class Replica:
    events: ClusterEvents
    hearing: Hearing


def replica(store: Store, label: str, secret: bytes = b"secret") -> Replica:
    hearing = Hearing()
    sealer = Sealer(secret, label=label)
    return Replica(ClusterEvents(store, sealer, hearing, Metrics(CollectorRegistry())), hearing)


@asynccontextmanager
async def replicas(store: Store, many: int = 3) -> AsyncIterator[list[Replica]]:
    made = [replica(store, f"r{number}") for number in range(many)]
    async with anyio.create_task_group() as tasks:
        for each in made:
            tasks.start_soon(each.events.run)
        await listening(made)
        for each in made:
            each.hearing.gaps = 0
        yield made
        tasks.cancel_scope.cancel()


async def listening(made: Sequence[Replica]) -> None:
    """Returns once all hear each other. The markers that this takes are kept apart from what is heard later."""
    markers = [SessionEnded(f"{MARKER}{number}") for number in range(len(made))]
    with anyio.fail_after(GUARD):
        while not all(len(each.hearing.markers) == len(made) - 1 for each in made):
            for teller, marker in zip(made, markers, strict=True):
                teller.events.tell(marker)
            await anyio.lowlevel.checkpoint()


async def test_what_an_upstream_announced_is_heard_by_the_others_once_and_not_by_its_teller(store: Store) -> None:
    async with replicas(store) as three:
        told = three[0].events
        told.on_event(UpstreamChanged("up", None, ResourceUpdated("memo:a")))
        told.on_event(UpstreamChanged("up", None, ListChanged(Kind.TOOLS)))
        told.tell(StaleReads("up"))
        last = SessionEnded("last")
        told.tell(last)
        for other in three[1:]:
            await other.hearing.hears(last)
            expected = [StaleResource("up", "memo:a"), StaleList("up", "tools"), StaleReads("up"), last]
            assert other.hearing.heard == expected
        answer = SessionEnded("answer")
        three[1].events.tell(answer)
        await three[0].hearing.hears(answer)
        assert three[0].hearing.heard == [answer]
        assert [each.hearing.gaps for each in three] == [0, 0, 0]


async def test_the_same_event_many_times_at_once_is_one(store: Store) -> None:
    async with replicas(store) as three:
        for _ in range(100):
            three[0].events.tell(StaleResource("up", "memo:a"))
        three[0].events.tell(StaleAccess())
        await three[1].hearing.hears(StaleAccess())
        assert three[1].hearing.heard == [StaleResource("up", "memo:a"), StaleAccess()]


async def test_what_concerns_one_caller_or_one_connection_is_not_told() -> None:
    store = LocalStore()
    async with replicas(store) as three:
        told = three[0].events
        told.on_event(UpstreamChanged("up", "session", ResourceUpdated("memo:a")))
        told.on_event(UpstreamChanged("up", None, Notice("notifications/message", {})))
        told.on_event(Disconnected("up", None, "gone"))
        told.tell(StaleAccess())
        await three[1].hearing.hears(StaleAccess())
        assert three[1].hearing.heard == [StaleAccess()]


async def test_more_than_can_wait_to_be_told_is_a_gap_for_the_others() -> None:
    async with replicas(LocalStore()) as three:
        for number in range(MAX_PENDING + 1):
            three[0].events.tell(StaleResource("up", f"memo:{number}"))
        three[0].events.tell(SessionEnded("last"))
        await three[1].hearing.hears(SessionEnded("last"))
        assert three[1].hearing.gaps == 1
        assert len(three[1].hearing.heard) < MAX_PENDING / 2


async def test_an_entry_that_another_secret_sealed_is_a_gap_and_told_to_nobody() -> None:
    store = LocalStore()
    async with replicas(store) as three:
        forged = replica(store, "forger", secret=b"another")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forged.events.run)
            forged.events.tell(SessionEnded("victim"))
            for each in three:
                await each.hearing.until(lambda it: it.gaps == 1)
                assert each.hearing.heard == []
            tasks.cancel_scope.cancel()


class Hostile(LocalStore):
    """A store whose writer withholds entries, so that the numbers of the rest have no gap, and remembers all."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.withholds = False

    async def append(self, stream: str, value: bytes, keep: int) -> StreamPosition:
        self.written.append(value)
        return await self.end(stream) if self.withholds else await super().append(stream, value, keep)


async def test_an_entry_that_was_withheld_is_a_gap_however_the_others_are_numbered() -> None:
    store = Hostile()
    async with replicas(store) as three:
        written = len(store.written)
        store.withholds = True
        three[0].events.tell(SessionEnded("withheld"))
        with anyio.fail_after(GUARD):
            while len(store.written) == written:
                await anyio.lowlevel.checkpoint()
        store.withholds = False
        three[0].events.tell(SessionEnded("next"))
        for other in three[1:]:
            await other.hearing.hears(SessionEnded("next"))
            assert (other.hearing.heard, other.hearing.gaps) == ([SessionEnded("next")], 1)


async def test_entries_that_are_replayed_are_heard_once() -> None:
    store = Hostile()
    async with replicas(store) as three:
        three[0].events.tell(SessionEnded("once"))
        await three[1].hearing.hears(SessionEnded("once"))
        for value in list(store.written):
            await store.append(STREAM, value, 1000)
        three[0].events.tell(SessionEnded("next"))
        await three[1].hearing.hears(SessionEnded("next"))
        assert three[1].hearing.heard == [SessionEnded("once"), SessionEnded("next")]
        assert three[1].hearing.gaps == 0


async def test_an_entry_whose_write_was_done_and_not_answered_is_heard_once_and_is_no_gap() -> None:
    class Unanswering(LocalStore):
        fails = False

        async def append(self, stream: str, value: bytes, keep: int) -> StreamPosition:
            position = await super().append(stream, value, keep)
            if self.fails:
                self.fails = False
                raise StoreUnavailable("the answer was lost")
            return position

    store = Unanswering()
    async with replicas(store) as three:
        store.fails = True
        three[0].events.tell(SessionEnded("once"))
        three[0].events.tell(SessionEnded("next"))
        await three[1].hearing.hears(SessionEnded("next"))
        three[0].events.tell(SessionEnded("last"))
        await three[1].hearing.hears(SessionEnded("last"))
        assert three[1].hearing.heard == [SessionEnded(key) for key in ("once", "next", "last")]
        assert three[1].hearing.gaps == 0


def test_what_may_have_been_missed_of_a_sender_is_a_gap() -> None:
    senders = Senders()
    follows = [senders.arrival(*each) for each in (("a", 3), ("a", 4), ("b", 1), ("a", 6), ("a", 5), ("b", 2), ("", 1))]
    nxt, gap, again = Arrival.NEXT, Arrival.AFTER_GAP, Arrival.AGAIN
    assert follows == [gap, nxt, nxt, gap, again, nxt, gap]


async def test_entries_that_are_not_kept_any_more_are_a_gap(redis_store: Store) -> None:
    async with replicas(redis_store) as three:
        position = await redis_store.end(STREAM)
        late = replica(redis_store, "late")
        late.events._position = position
        for number in range(400):
            three[0].events.tell(SessionEnded(f"{number}"))
            await redis_store.append(STREAM, b"not ours", 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late.events.run)
            await late.hearing.until(lambda it: it.gaps > 0)
            tasks.cancel_scope.cancel()


async def test_what_was_told_on_a_stream_that_took_the_place_of_a_lost_one_is_heard_by_who_comes_back_late() -> None:
    store = LocalStore()
    late = replica(store, "late")
    late.events._position = StreamPosition(1, 1000)
    async with replicas(store) as three:
        three[0].events.tell(SessionEnded("before it was back"))
        await three[1].hearing.hears(SessionEnded("before it was back"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late.events.run)
            await late.hearing.hears(SessionEnded("before it was back"))
            assert late.hearing.gaps == 1
            tasks.cancel_scope.cancel()


async def test_a_redis_that_is_away_delays_what_is_told_and_one_that_lost_the_stream_is_a_gap(
    redis_server: RedisServer,
) -> None:
    await redis_server.start()
    async with opened_store(redis_server.url, GUARD) as store, replicas(store) as three:
        redis_server.stop()
        with pytest.raises(StoreUnavailable):
            await store.end(STREAM)
        three[0].events.tell(SessionEnded("while it is away"))
        await redis_server.start()
        for other in three[1:]:
            await other.hearing.hears(SessionEnded("while it is away"))
            assert other.hearing.gaps >= 1
            assert other.hearing.heard.count(SessionEnded("while it is away")) == 1


async def test_operators_hear_once_that_changes_do_not_go_round_and_once_that_they_do_again(
    redis_server: RedisServer,
) -> None:
    await redis_server.start()
    async with opened_store(redis_server.url, GUARD) as store, replicas(store) as three:
        with capture_logs() as logs, anyio.fail_after(GUARD):
            redis_server.stop()
            for each in three:
                each.events.tell(SessionEnded("while it is away"))
            while len(logs) < 6:  # noqa: ASYNC110 a log has no event
                await anyio.sleep(0.01)
            await redis_server.start()
            while len(logs) < 12:  # noqa: ASYNC110
                await anyio.sleep(0.01)
    away = "changes do not go round among the replicas: cached reads may be out of date"
    back = "changes go round among the replicas again"
    assert Counter((line["event"], line["doing"]) for line in logs) == {
        (said, doing): 3 for said in (away, back) for doing in ("reading", "writing")
    }


@pytest.mark.parametrize(
    ("event", "change"),
    [
        (StaleResource("up", "memo:a"), ResourceUpdated("memo:a")),
        (StaleList("up", "resources"), ListChanged(Kind.RESOURCES)),
    ],
)
def test_what_is_heard_is_the_change_that_was_told(
    event: StaleResource | StaleList, change: ResourceUpdated | ListChanged
) -> None:
    assert upstream_change(event) == UpstreamChanged("up", None, change)
