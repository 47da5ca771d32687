"""The twin of `mcproxy.cluster.oauth.logins`: a login that begins at one replica and ends at another, once."""

from __future__ import annotations

import anyio
import pytest

from mcproxy.cluster.oauth.logins import SharedLogins
from mcproxy.sealing import Sealer
from mcproxy.upstream.oauth.storage.store import StoreFailed
from mcproxy.upstream.oauth.under_way import MAX_LOGINS
from tests.cluster.oauth.test_grants import Interrupted

pytestmark = pytest.mark.anyio


def logins(store: Interrupted) -> SharedLogins:
    return SharedLogins(store, Sealer(b"secret"))


async def test_a_login_that_begins_at_one_replica_is_taken_once_at_another_and_in_its_session_alone() -> None:
    store = Interrupted()
    await logins(store).add("state", "mine", "ann", b"sentinel", 60)
    [name] = await store.names("")
    assert "sentinel" not in repr((name, await store.get(name)))
    assert "state" not in name
    assert await logins(store).take("guess", "mine") is None
    assert await logins(store).take("state", "other") is None
    assert await logins(store).take("state", "mine") == b"sentinel"
    assert await logins(store).take("state", "mine") is None


async def test_a_login_is_over_when_its_time_is() -> None:
    now = 0.0
    store = Interrupted(lambda: now)
    await logins(store).add("state", "mine", "ann", b"step", 60)
    now = 60
    assert await logins(store).take("state", "mine") is None


async def test_what_is_not_sealed_by_a_replica_or_under_another_state_is_no_login() -> None:
    store = Interrupted()
    await logins(store).add("state", "mine", "ann", b"step", 60)
    await logins(store).add("other", "mine", "ann", b"step", 60)
    first, second = await store.names("")
    held = await store.get(first)
    assert held is not None
    await store.put(second, held, 60)
    assert await logins(store).take("other", "mine") is None
    await store.put(first, b"forged", 60)
    assert await logins(store).take("state", "mine") is None


async def test_logins_that_one_replica_began_are_bounded() -> None:
    store = Interrupted()
    it = logins(store)
    for number in range(MAX_LOGINS + 2):
        await it.add(f"{number}", "mine", "ann", b"step", 60)
    assert len(await store.names("")) == MAX_LOGINS
    assert await it.take("0", "mine") is None
    assert await it.take("2", "mine") == b"step"


async def test_logins_that_begin_at_once_are_bounded_as_well() -> None:
    class Slow(Interrupted):
        async def remove(self, key: str, expected: bytes | None = None) -> bool:
            await anyio.lowlevel.checkpoint()
            return await super().remove(key, expected)

    store = Slow()
    it = logins(store)
    async with anyio.create_task_group() as tasks:
        for number in range(2 * MAX_LOGINS):
            tasks.start_soon(it.add, f"{number}", "mine", "ann", b"step", 60)
    assert len(await store.names("")) == MAX_LOGINS


async def test_many_logins_by_the_links_of_one_principal_push_out_none_of_others() -> None:
    it = logins(Interrupted())
    await it.add("other", "mine", "bob", b"step", 60)
    for number in range(MAX_LOGINS + 2):
        await it.add(f"{number}", "mine", "ann", b"step", 60)
    assert await it.take("other", "mine") == b"step"


async def test_no_login_begins_or_ends_while_the_store_is_away() -> None:
    store = Interrupted()
    await logins(store).add("state", "mine", "ann", b"step", 60)
    store.is_away = True
    with pytest.raises(StoreFailed, match="no login can be made until"):
        await logins(store).add("another", "mine", "ann", b"step", 60)
    with pytest.raises(StoreFailed, match="no login can be made until"):
        await logins(store).take("state", "mine")
