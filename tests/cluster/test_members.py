"""The twin of `mcproxy.cluster.members`."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mcproxy.cluster.members import ABSENCES, GROUP, Member, Members, chosen
from mcproxy.cluster.store.protocol import StoreUnavailable
from mcproxy.sealing import Sealer
from mcproxy.telemetry.metrics import Metrics
from tests.fakes.local_store import LocalStore
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

LABELS = st.sets(st.text("abcdef0123456789", min_size=8, max_size=8), min_size=1, max_size=8)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Flaky(LocalStore):
    """A store that can be away."""

    is_away = False
    announced = 0

    async def announce(self, group: str, name: str, value: bytes, ttl: float) -> dict[str, bytes]:
        self.announced += 1
        if self.is_away:
            raise StoreUnavailable("away")
        return dict(await super().announce(group, name, value, ttl))


class Replicas:
    """Replicas that share a store and a clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = Flaky(self.clock)
        self.metrics = Metrics()
        self.returned: list[str] = []
        """What replicas heard of those that came, or came again."""
        self.gone: list[Member] = []
        self.answering: set[str] = set()
        """Labels of those that answer by themselves."""
        self.asked: list[str] = []
        self.silence = anyio.Event()
        """Ends the wait for those that do not answer."""
        self.silence.set()

    def add(
        self, label: str, secret: bytes = b"secret", configuration: str = "same", placed: tuple[str, ...] = ()
    ) -> Members:
        member = Member(label, f"http://{label}", "1", configuration, "lock", placed)
        sealer = Sealer(secret, label=label)
        heard = self.returned.append, self.gone.append
        return Members(self.store, sealer, lambda: member, 5, self.metrics, *heard, self.answers, self.clock)

    async def answers(self, member: Member) -> bool:
        self.asked.append(member.label)
        await self.silence.wait()
        return member.label in self.answering

    def gauge(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def replicas() -> Replicas:
    return Replicas()


async def test_replicas_find_each_other(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await a.announce()
    await b.announce()
    await a.announce()
    assert [member.label for member in a.all()] == ["a", "b"]
    found = b.find("a")
    assert found is not None
    assert found.address == "http://a"
    assert a.find("c") is None


async def test_a_member_that_is_not_announced_any_more_and_does_not_answer_is_dead_after_some_absences(
    replicas: Replicas,
) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await b.announce()
    await a.announce()
    replicas.clock.now += 6
    for _ in range(ABSENCES):
        assert a.find("b") is not None
        assert replicas.asked == []
        await a.announce()
        await a.examine()
    assert a.find("b") is None
    assert replicas.asked == ["b"]
    assert [member.label for member in replicas.gone] == ["b"]
    assert replicas.gauge("mcproxy_cluster_members", state="live") == 1


async def test_a_member_whose_announcements_are_late_lives_for_as_long_as_it_answers(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await b.announce()
    await a.announce()
    assert a.is_announced("b")
    replicas.clock.now += 6
    replicas.answering = {"b"}
    for _ in range(3 * ABSENCES):
        await a.announce()
        await a.examine()
        assert a.find("b") is not None
        assert not a.is_announced("b")
    assert replicas.asked == ["b"] * 3, "once in as many announcements as make it absent"
    await b.announce()
    await a.announce()
    assert a.is_announced("b")
    replicas.answering = set()
    replicas.clock.now += 6
    for _ in range(ABSENCES):
        await a.announce()
        await a.examine()
    assert a.find("b") is None


async def test_a_member_that_is_announced_while_it_is_asked_is_kept_although_it_did_not_answer(
    replicas: Replicas,
) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await b.announce()
    await a.announce()
    replicas.clock.now += 6
    for _ in range(ABSENCES):
        await a.announce()
    replicas.silence = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.examine)
        await anyio.wait_all_tasks_blocked()
        await b.announce()
        await a.announce()
        replicas.silence.set()
    assert a.find("b") is not None


async def test_no_member_counts_as_announced_while_the_store_is_away(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await b.announce()
    await a.announce()
    replicas.store.is_away = True
    await a.announce()
    assert not a.is_announced("b")


async def test_a_member_that_is_leaving_is_gone_when_it_withdraws_and_takes_nothing_new_before(
    replicas: Replicas,
) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await a.announce()
    await b.announce()
    await b.leave()
    await a.announce()
    found = a.find("b")
    assert found is not None
    assert found.is_leaving
    assert all(a.owner(f"{key}") is None for key in range(50))
    assert all(b.owner(f"{key}") is not None for key in range(50))
    await b.withdraw()
    await a.announce()
    assert a.find("b") is None


async def test_an_upstream_of_all_replicas_is_run_by_one_that_has_it(replicas: Replicas) -> None:
    a, b, c = replicas.add("a"), replicas.add("b", placed=("up",)), replicas.add("c", placed=("up", "more"))
    for each in (a, b, c, a, b):
        await each.announce()
    owners = [[(each.owner(f"{key}", "up") or each.own).label for key in range(50)] for each in (b, c)]
    assert owners[0] == owners[1]
    assert set(owners[0]) == {"b", "c"}
    assert all(c.owner(f"{key}", "more") is None for key in range(50))


async def test_a_member_that_has_just_come_is_found_when_it_is_looked_for(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await a.announce()
    await b.announce()
    assert a.find("b") is None
    await a.look_for("b")
    assert a.find("b") is not None


async def test_one_that_is_nobody_is_looked_for_once_in_a_while(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await a.look_for("b")
    await b.announce()
    await a.look_for("b")
    assert a.find("b") is None, "that there is no b was found out a moment ago"
    replicas.clock.now += 5
    await b.announce()
    await a.look_for("b")
    assert a.find("b") is not None


async def test_a_look_that_was_cut_off_says_nothing_of_who_is_there(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await b.announce()
    with anyio.CancelScope() as looking:
        looking.cancel()
        await a.look_for("b")
    await a.look_for("b")
    assert a.find("b") is not None


async def test_a_member_that_is_gone_is_not_looked_for(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await b.leave()
    await a.announce()
    await b.withdraw()
    await a.announce()
    before = replicas.store.announced
    await a.look_for("b")
    await a.look_for("a")
    await a.look_for("")
    assert replicas.store.announced == before


async def test_nobody_is_looked_for_while_the_store_is_away(replicas: Replicas) -> None:
    a = replicas.add("a")
    replicas.store.is_away = True
    await a.announce()
    before = replicas.store.announced
    await a.look_for("b")
    assert replicas.store.announced == before


async def test_a_replica_that_ends_waits_for_those_that_stay_and_not_for_others_that_end(replicas: Replicas) -> None:
    a, b, c = replicas.add("a"), replicas.add("b"), replicas.add("c")
    for one in (a, b, c, a):
        await one.announce()
    await a.leave()
    await b.leave()
    await a.linger(0)
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(a.linger, 2 * GUARD)
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            assert a.owner("key") is not None, "c stays"
            await c.leave()
        await b.linger(2 * GUARD)
    assert [a.state(member) for member in a.all()] == ["leaving"] * 3


async def test_a_replica_that_is_alone_does_not_wait_at_its_end(replicas: Replicas) -> None:
    a = replicas.add("a")
    await a.leave()
    with anyio.fail_after(GUARD):
        await a.linger(2 * GUARD)


async def test_who_is_absent_while_a_replica_waits_at_its_end_is_not_taken_for_dead_sooner(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await b.announce()
    await a.announce()
    replicas.clock.now += 6
    for _ in range(2 * ABSENCES):
        await a.announce(is_regular=False)
    await a.examine()
    assert replicas.asked == []
    assert a.find("b") is not None


async def test_a_member_that_refuses_connections_counts_no_more_until_it_answers(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await b.announce()
    await a.announce()
    a.lose("b")
    assert a.find("b") is None
    assert replicas.gauge("mcproxy_cluster_members", state="unreachable") == 1
    replicas.clock.now += 100
    await b.announce()
    await a.announce()
    await a.examine()
    assert a.find("b") is None
    replicas.answering = {"b"}
    await a.examine()
    assert a.find("b") is not None


async def test_what_was_adopted_is_given_back_when_its_replica_comes_again(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await b.announce()
    await a.announce()
    a.lose("b")
    replicas.returned.clear()
    replicas.answering = {"b"}
    await a.examine()
    assert a.find("b") is not None
    assert replicas.returned == ["b"]


async def test_a_replica_that_was_frozen_hears_of_itself(replicas: Replicas) -> None:
    a = replicas.add("a")
    await a.announce()
    replicas.clock.now += 5.1
    await a.announce()
    assert replicas.returned == ["a"]


async def test_a_store_that_is_away_freezes_nobody(replicas: Replicas) -> None:
    a = replicas.add("a")
    replicas.store.is_away = True
    for _ in range(10):
        replicas.clock.now += 1
        await a.announce()
    assert replicas.returned == []


async def test_the_members_known_last_count_while_the_store_is_away(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await b.announce()
    await a.announce()
    replicas.store.is_away = True
    replicas.clock.now += 1000
    for _ in range(10):
        await a.announce()
    assert a.find("b") is not None


async def test_a_replica_that_never_reached_the_store_cannot_tell_who_is_dead(replicas: Replicas) -> None:
    a = replicas.add("a")
    replicas.store.is_away = True
    await a.announce()
    assert not a.are_known
    replicas.store.is_away = False
    await a.announce()
    replicas.store.is_away = True
    await a.announce()
    assert a.are_known


async def test_a_store_that_lost_its_data_kills_nobody(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    await b.announce()
    await a.announce()
    await replicas.store.withdraw(GROUP, "b")
    await a.announce()
    await b.announce()
    await a.announce()
    assert a.find("b") is not None


async def test_what_was_not_sealed_with_our_secret_is_no_member(replicas: Replicas) -> None:
    a, stranger = replicas.add("a"), replicas.add("x", secret=b"another")
    await stranger.announce()
    await replicas.store.announce(GROUP, "y", b"\xff", 60)
    await a.announce()
    assert [member.label for member in a.all()] == ["a"]


async def test_operators_are_told_once_of_each_entry_that_another_secret_sealed(replicas: Replicas) -> None:
    a, told = replicas.add("a"), list[int]()
    for entries in (["x"], ["x"], ["x", "y"], ["x", "y"]):
        for name in entries:
            await replicas.store.announce(GROUP, name, b"sealed with another secret", 60)
        with capture_logs() as logs:
            await a.announce()
        told += [line["count"] for line in logs if "not sealed with our secret" in line["event"]]
    assert told == [1, 2]


async def test_replicas_that_differ_are_counted(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b", configuration="another")
    await b.announce()
    await a.announce()
    assert replicas.gauge("mcproxy_cluster_mismatches", what="configuration") == 1
    assert replicas.gauge("mcproxy_cluster_mismatches", what="lock") == 0


async def test_a_replica_announces_itself_again_and_again(replicas: Replicas) -> None:
    a, b = replicas.add("a"), replicas.add("b")
    a._ttl = 0.01
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(a.run)
            await b.announce()
            while a.find("b") is None:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()


@given(LABELS, st.text())
def test_all_replicas_choose_the_same_whatever_order_they_know_each_other_in(labels: set[str], key: str) -> None:
    assert chosen(key, sorted(labels)) == chosen(key, sorted(labels, reverse=True))


@given(LABELS, st.text("xyz", min_size=8, max_size=8), st.text())
def test_a_key_moves_only_to_a_replica_that_comes(labels: set[str], newcomer: str, key: str) -> None:
    assert chosen(key, [*labels, newcomer]) in {chosen(key, labels), newcomer}


def test_keys_are_spread_over_all_replicas() -> None:
    labels = ["a", "b", "c"]
    counts = [sum(chosen(f"{key}", labels) == label for key in range(3000)) for label in labels]
    assert min(counts) > 800
