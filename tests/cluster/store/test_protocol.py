"""The twin of `mcproxy.cluster.store.protocol`: what a store does, that of the tests in memory and a real Redis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest

from mcproxy.cluster.store.protocol import START, Argument, ScriptResult, Store, StreamPosition, follows
from tests.fakes.local_store import LocalStore, Memory
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

COUNT = "return redis.call('INCRBY', KEYS[1], ARGV[1])"


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "memory":
        return LocalStore(twins={COUNT: _count})
    found: Store = request.getfixturevalue("redis_store")
    return found


async def test_a_key_has_the_value_that_was_put_last_and_none_once_it_is_removed(store: Store) -> None:
    assert await store.get("key") is None
    await store.put("key", b"one", 60)
    await store.put("key", b"two\0\xff", 60)
    assert await store.get("key") == b"two\0\xff"
    assert await store.remove("key")
    assert await store.get("key") is None
    assert not await store.remove("key")


async def test_a_key_whose_time_is_over_has_no_value(store: Store) -> None:
    await store.put("key", b"value", 0.02)
    with anyio.fail_after(GUARD):
        while await store.get("key") is not None:
            await anyio.lowlevel.checkpoint()
    assert await store.add("key", b"another", 60)


async def test_of_many_that_add_a_key_one_succeeds(store: Store) -> None:
    added: list[bool] = []

    async def add(value: bytes) -> None:
        added.append(await store.add("key", value, 60))

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(add, b"%d" % number)
    assert sum(added) == 1


async def test_of_many_that_take_a_key_one_is_given_it(store: Store) -> None:
    await store.put("key", b"value", 60)
    taken: list[bytes | None] = []

    async def take() -> None:
        taken.append(await store.take("key"))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(take)
    assert sorted(taken, key=bool) == [None] * 7 + [b"value"]


async def test_a_key_is_removed_only_while_it_has_the_expected_value(store: Store) -> None:
    await store.put("key", b"value", 60)
    assert not await store.remove("key", b"other")
    assert await store.get("key") == b"value"
    assert await store.remove("key", b"value")


async def test_a_key_is_replaced_only_while_it_has_the_expected_value_or_none(store: Store) -> None:
    assert await store.replace("key", b"one", 60, None)
    assert not await store.replace("key", b"two", 60, None)
    assert not await store.replace("key", b"two", 60, b"other")
    assert await store.get("key") == b"one"
    assert await store.replace("key", b"two\0\xff", 60, b"one")
    assert await store.get("key") == b"two\0\xff"


async def test_keys_are_found_by_what_they_begin_with(store: Store) -> None:
    for key in ("kind:one", "kind:two", "other", "kin"):
        await store.put(key, b"", 60)
    assert sorted(await store.names("kind:")) == ["kind:one", "kind:two"]
    assert await store.names("none") == []


async def test_members_of_a_group_are_those_that_announced_themselves_and_did_not_withdraw(store: Store) -> None:
    assert await store.announce("group", "a", b"1", 60) == {"a": b"1"}
    assert await store.announce("group", "b", b"2 2", 60) == {"a": b"1", "b": b"2 2"}
    assert await store.announce("group", "a", b"3", 60) == {"a": b"3", "b": b"2 2"}
    await store.withdraw("group", "b")
    assert await store.announce("group", "a", b"3", 60) == {"a": b"3"}


async def test_a_member_whose_time_is_over_is_gone(store: Store) -> None:
    await store.announce("group", "short", b"", 0.02)
    with anyio.fail_after(GUARD):
        while "short" in await store.announce("group", "long", b"", 60):
            await anyio.lowlevel.checkpoint()


async def test_a_member_whose_time_is_over_between_two_looks_is_gone() -> None:
    ticks = itertools.count()
    store = LocalStore(lambda: next(ticks))
    assert await store.announce("group", "short", b"", 2) == {}


async def test_entries_of_a_stream_are_numbered_one_by_one_and_read_in_order(store: Store) -> None:
    assert await store.end("stream") == START
    positions = [await store.append("stream", b"%d" % number, 100) for number in range(5)]
    assert await store.end("stream") == positions[-1]
    assert all(follows(before, after) for before, after in zip([START, *positions], positions, strict=False))
    entries = await store.read("stream", positions[1], 0.001)
    assert [(entry.position, entry.value) for entry in entries] == list(
        zip(positions[2:], [b"2", b"3", b"4"], strict=True)
    )
    assert list(await store.read("stream", positions[-1], 0.001)) == []


async def test_a_read_waits_for_the_next_entry(store: Store) -> None:
    found: list[bytes] = []

    async def read() -> None:
        found.extend(entry.value for entry in await store.read("stream", START, 5))

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.lowlevel.checkpoint()
            await store.append("stream", b"entry", 100)
    assert found == [b"entry"]


async def test_a_reader_sees_that_entries_which_it_missed_are_not_kept_any_more(store: Store) -> None:
    position = await store.append("stream", b"first", 1)
    for _ in range(300):  # Redis drops entries by the hundred
        await store.append("stream", b"more", 1)
    assert not follows(position, (await store.read("stream", position, 0.001))[0].position)


def _count(keys: Memory, names: Sequence[str], arguments: Sequence[Argument], now: float) -> ScriptResult:
    count = int(keys.get(names[0], b"0")) + int(arguments[0])
    keys[names[0]] = b"%d" % count
    return count


async def test_a_script_changes_keys_in_one_step(store: Store) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(store.run, COUNT, ["{limit}"], [2])
    assert await store.run(COUNT, ["{limit}"], [1]) == 17


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (START, StreamPosition(7, 1), True),
        (START, StreamPosition(7, 2), False),
        (StreamPosition(7, 1), StreamPosition(7, 2), True),
        (StreamPosition(7, 1), StreamPosition(7, 3), False),
        (StreamPosition(7, 1), StreamPosition(8, 2), False),
        (StreamPosition(7, 0), StreamPosition(8, 1), False),
    ],
)
def test_an_entry_follows_another_of_the_same_epoch_with_the_number_before(
    before: StreamPosition, after: StreamPosition, expected: bool
) -> None:
    assert follows(before, after) is expected
