"""Limits that replicas share, in both stores: three replicas that know nothing of each other but what the store tells.

The numbers are exact, or have the bound that the documentation gives: one chunk, a hundredth of the limit, for each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcproxy.call.identity import Principal
from mcproxy.cluster.ledger import BATCH, SharedLedger
from mcproxy.cluster.store.protocol import Argument, ScriptResult, Store, StoreUnavailable
from mcproxy.cluster.store.redis_store import opened_store
from mcproxy.features.limits.limits import DAY, Admission, Exceeded, Limits
from mcproxy.settings.access.limits import RateLimits
from tests.cluster.conftest import RedisServer
from tests.cluster.replicas import cluster
from tests.fakes.clients.raw import RawClient, over_http
from tests.fakes.local_store import LocalStore
from tests.system.running import PYTHON, ROOT
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

NOON = 20_000 * DAY + DAY / 2
ANN = Principal("ann")


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "memory":
        return LocalStore()
    found: Store = request.getfixturevalue("redis_store")
    return found


@dataclass
class Replica:
    limits: Limits
    ledger: SharedLedger
    admitted: list[Admission] = field(default_factory=list)

    async def call(self, *, utc: float = NOON, caller: Principal = ANN) -> bool:
        """Whether a call gets in, which then runs on."""
        try:
            admission = await self.limits.admit_shared(caller, "up", "tool", anyio.current_time, lambda: utc)
        except Exceeded:
            return False
        self.admitted.append(admission)
        return True

    def release(self) -> None:
        for admission in self.admitted:
            self.limits.release(admission)
        self.admitted.clear()

    async def settled(self) -> None:
        """Returns once the store has answered all that was asked."""
        with anyio.fail_after(GUARD):
            while self.ledger.is_asking:
                await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def replicas(
    store: Store, many: int = 3, live: Callable[[], Sequence[str]] | None = None, **rule: Any
) -> AsyncIterator[list[Replica]]:
    names = [f"r{number}" for number in range(many)]
    async with anyio.create_task_group() as tasks:
        made = [replica(store, name, live or (lambda: names), **rule) for name in names]
        for each in made:
            tasks.start_soon(each.ledger.run)
        yield made
        tasks.cancel_scope.cancel()


def replica(store: Store, name: str, live: Callable[[], Sequence[str]], max_keys: int = 1000, **rule: Any) -> Replica:
    ledger = SharedLedger(store, name, live, anyio.current_time, GUARD)
    limits = Limits(RateLimits.model_validate({"rules": {"rule": rule}, "max_keys": max_keys}))
    limits.share(ledger)
    return Replica(limits, ledger)


async def alternating(replicas: Sequence[Replica], calls: int, utc: float = NOON) -> int:
    """How many of so many calls get in that a load balancer deals out one by one."""
    count = 0
    for number in range(calls):
        count += await replicas[number % len(replicas)].call(utc=utc)
        await anyio.lowlevel.checkpoint()
    return count


async def test_an_exact_quota_of_1000_admits_1000_of_three_replicas_calls(store: Store) -> None:
    async with replicas(store, daily=1000, exact=True) as three:
        async with anyio.create_task_group() as tasks:

            async def call(each: Replica) -> None:
                for _ in range(100):
                    await each.call()

            for each in three * 4:
                tasks.start_soon(call, each)
        assert sum(len(each.admitted) for each in three) == 1000


async def test_a_leased_quota_of_1000_admits_1000_and_at_most_a_chunk_for_each_replica(store: Store) -> None:
    async with replicas(store, daily=1000) as three:
        count = await alternating(three, 3000)
        for each in three:
            await each.settled()
        count += await alternating(three, 300)
        assert 1000 - 3 <= count <= 1000 + 3 * 10


async def test_no_call_waits_for_the_store_where_a_quota_is_leased() -> None:
    held = HeldStore(LocalStore())
    async with replicas(held, daily=1000) as three:
        held.hold()
        assert [await each.call() for each in three] == [True, True, True]
        await held.asked.wait()
        assert [await three[0].call() for _ in range(9)] == [True] * 9, "a chunk without an answer"
        with anyio.move_on_after(0.01) as waiting:
            await three[0].call()
        assert waiting.cancelled_caught, "one more waits"
        held.release()
        assert await three[0].call()


async def test_a_quota_survives_the_restart_of_a_replica(store: Store) -> None:
    async with replicas(store, many=1, daily=100) as [first]:
        for _ in range(60):
            await first.call()
            await first.settled()
    async with replicas(store, many=1, daily=100) as [second]:
        assert 40 <= await alternating([second], 200) <= 41


async def test_what_a_replica_reserved_and_did_not_use_is_given_back_when_it_stops(store: Store) -> None:
    async with replicas(store, many=1, daily=1000) as [first]:
        await first.call()
        await first.settled()
    async with replicas(store, many=1, daily=1000, exact=True) as [second]:
        assert await alternating([second], 1100) == 999


async def test_another_day_is_another_quota(store: Store) -> None:
    async with replicas(store, daily=5, exact=True) as three:
        assert await alternating(three, 10) == 5
        assert await alternating(three, 10, utc=NOON + DAY) == 5


async def gets_in(replica: Replica) -> None:
    """Calls until one gets in."""
    with anyio.fail_after(GUARD):
        for _ in range(1000):
            if await replica.call():
                return
            await anyio.sleep(0.05)


async def test_r73_calls_at_once_of_all_replicas_are_bounded_and_those_of_a_dead_one_are_over(store: Store) -> None:
    live = ["r0", "r1", "r2"]
    async with replicas(store, live=lambda: live, at_once=3, exact=True) as three:
        assert await alternating(three, 9) == 3
        three[0].release()
        for each in three:
            await each.settled()
        await gets_in(three[1])
        assert not await three[1].call()
        live.remove("r2")
        await gets_in(three[1])


async def test_r73_leased_calls_at_once_exceed_the_limit_by_one_for_each_replica_at_most(store: Store) -> None:
    async with replicas(store, at_once=4) as three:
        assert 4 <= await alternating(three, 60) <= 4 + 3
        for each in three:
            await each.settled()
        assert await alternating(three, 60) == 0
        for each in three:
            each.release()
            await each.settled()
        assert await alternating(three, 60) >= 4


async def test_a_bucket_of_all_replicas_gives_its_burst_and_then_its_rate(store: Store) -> None:
    async with replicas(store, rate="1/h", burst=200) as three:
        count = await alternating(three, 900)
        for each in three:
            await each.settled()
        count += await alternating(three, 300)
        assert 200 - 3 <= count <= 200 + 3 * 2


async def test_an_exact_bucket_gives_no_more_than_its_burst(store: Store) -> None:
    async with replicas(store, rate="1/h", burst=20, exact=True) as three:
        assert await alternating(three, 100) == 20


async def test_callers_have_counts_of_their_own_where_a_limit_says_so(store: Store) -> None:
    async with replicas(store, daily=2, exact=True, per=["principal"]) as three:
        for name in ("ann", "bob"):
            caller = Principal(name)
            assert sum([await three[n % 3].call(caller=caller) for n in range(6)]) == 2


async def test_more_counts_than_a_request_has_room_for_are_all_kept(store: Store) -> None:
    async with replicas(store, many=1, daily=100, per=["principal"]) as [first]:
        callers = [Principal(f"caller {number}") for number in range(2 * BATCH + 1)]
        for caller in callers:
            assert await first.call(caller=caller)
        await first.settled()
    async with replicas(store, many=1, daily=100, exact=True, per=["principal"]) as [second]:
        assert sum([await second.call(caller=callers[-1]) for _ in range(110)]) == 99


class HeldStore(LocalStore):
    """A store whose scripts do not end while it is held, or fail once it is broken."""

    def __init__(self, _inner: LocalStore) -> None:
        super().__init__()
        self.asked = anyio.Event()
        self._released = anyio.Event()
        self._released.set()
        self.is_broken = False

    def hold(self) -> None:
        self._released = anyio.Event()

    def release(self) -> None:
        self._released.set()

    async def run(self, lua: str, keys: Sequence[str], arguments: Sequence[Argument]) -> ScriptResult:
        self.asked.set()
        await self._released.wait()
        if self.is_broken:
            raise StoreUnavailable("broken")
        return await super().run(lua, keys, arguments)


async def away(replicas: Sequence[Replica]) -> None:
    """Returns once each of them knows that the store is away."""
    with anyio.fail_after(GUARD):
        while not all(each.ledger.is_away for each in replicas):
            await anyio.lowlevel.checkpoint()


async def test_while_the_store_is_away_each_replica_has_its_part_of_a_limit_and_what_it_used_is_told_later() -> None:
    store = HeldStore(LocalStore())
    async with replicas(store, daily=30) as three:
        store.is_broken = True
        assert await alternating(three, 3) == 3
        await away(three)
        assert await alternating(three, 300) == 30 - 3
        store.is_broken = False
        for each in three:
            await each.settled()
        assert not any(each.ledger.is_away for each in three)
        assert await alternating(three, 300) <= 3
    async with replicas(store, many=1, daily=34, exact=True) as [later]:
        assert 1 <= await alternating([later], 10) <= 4


@pytest.mark.parametrize("is_away", [False, True])
async def test_r73_a_count_that_a_replica_dropped_is_not_begun_anew(is_away: bool) -> None:
    store = HeldStore(LocalStore())
    async with replicas(store, many=1, max_keys=10, daily=4, exact=True, per=["principal"]) as [one]:
        store.is_broken = is_away
        assert [await one.call() for _ in range(3)] == [True, True, True]
        assert one.ledger.is_away == is_away
        for number in range(30):
            await one.call(caller=Principal(f"p{number}"))
        store.is_broken = False
        await one.settled()
        assert [await one.call() for _ in range(3)] == [True, False, False]


async def test_while_the_store_is_away_a_closed_limit_refuses() -> None:
    store = HeldStore(LocalStore())
    async with replicas(store, many=1, daily=1000, fail="closed") as [one]:
        assert await one.call()
        await one.settled()
        store.is_broken = True
        for _ in range(6):
            await one.call()
        await away([one])
        with pytest.raises(Exceeded, match="are not available"):
            await one.limits.admit_shared(ANN, "up", "tool", anyio.current_time, lambda: NOON)
        store.is_broken = False
        await one.settled()
        assert await one.call()


async def test_r72_an_exact_call_does_not_wait_for_a_store_that_is_away() -> None:
    store = HeldStore(LocalStore())
    async with replicas(store, many=1, daily=10, exact=True) as [one]:
        store.is_broken = True
        assert await one.call()
        assert one.ledger.is_away
        assert await alternating([one], 20) == 9


async def test_a_redis_that_lost_its_counts_is_told_them_again(redis_server: RedisServer) -> None:
    await redis_server.start()
    async with opened_store(redis_server.url, GUARD) as store, replicas(store, daily=300) as three:
        await alternating(three, 150)
        for each in three:
            await each.settled()
        redis_server.stop()
        await redis_server.start()
        count = 0
        with anyio.fail_after(GUARD):
            while count < 100:
                more = await alternating(three, 3)
                count += more
                if not more:
                    break
                await anyio.lowlevel.checkpoint()
        for each in three:
            await each.settled()
        assert 90 <= count + await alternating(three, 300) <= 150 + 3 * 3


# Three gateways behind nginx, as their users run them.


async def through_nginx(folder: Path, redis: str, rule: dict[str, object], calls: int) -> int:
    """How many of so many calls get in that nginx deals out to three gateways."""
    server = {"command": PYTHON, "args": ["-I", "-S", PID], "era": "legacy"}
    access = {"limits": {"rules": {"rule": {**rule, "tools": ["who"]}}}}
    async with cluster(folder, {"a": server}, redis, access=access) as three, AsyncExitStack() as stack:
        admitted: list[bool] = []

        async def call(client: RawClient) -> None:
            admitted.extend(["result" in await client.call("a__who") for _ in range(calls // CLIENTS)])

        clients = [await stack.enter_async_context(over_http(f"{three.url}/mcp")) for _ in range(CLIENTS)]
        for client in clients:
            await client.initialize()
        async with anyio.create_task_group() as tasks:
            for client in clients:
                tasks.start_soon(call, client)
        assert len(admitted) == calls
        return sum(admitted)


CLIENTS = 6
PID = str(ROOT / "tests" / "fakes" / "servers" / "pid.py")


async def test_r73_three_gateways_admit_1000_of_an_exact_daily_quota_of_1000(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    await redis_server.start()
    assert await through_nginx(tmp_path, redis_server.url, {"daily": 1000, "exact": True}, 1200) == 1000


async def test_r73_three_gateways_admit_1000_of_a_leased_quota_and_a_chunk_each_at_most(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    await redis_server.start()
    # What one has reserved when the last calls come is refused to the others, and may be left.
    assert 1000 - 3 * 10 <= await through_nginx(tmp_path, redis_server.url, {"daily": 1000}, 1200) <= 1000 + 3 * 10


class Misleading(LocalStore):
    """A store whose scripts answer what was put into `answer`."""

    answer: ScriptResult = None

    async def run(self, lua: str, keys: Sequence[str], arguments: Sequence[Argument]) -> ScriptResult:
        return self.answer


@pytest.mark.parametrize("answer", [None, 7, [], [[1, 0, 0]] * 2, [[1, 0]], [[1, None, 0]], [b"1"]])
async def test_counts_of_another_form_are_no_counts(answer: ScriptResult) -> None:
    store = Misleading()
    store.answer = answer
    async with replicas(store, many=1, daily=300) as (only,):
        with anyio.fail_after(GUARD):
            while not only.ledger.is_away:
                await only.call()
