"""The twin of `mcproxy.cluster.oauth.grants`: replicas that share a store, which may be away, or lose what it held."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from mcproxy.cluster.oauth.grants import SKEW, SharedGrants
from mcproxy.cluster.store.protocol import StoreUnavailable
from mcproxy.sealing import Sealer
from mcproxy.upstream.oauth.grants import GrantKey
from mcproxy.upstream.oauth.registration import ClientIdentity
from mcproxy.upstream.oauth.storage.store import StoreFailed
from tests.fakes.local_store import LocalStore
from tests.timeouts import GUARD
from tests.upstream.oauth.test_grants import grant

pytestmark = pytest.mark.anyio

KEY = GrantKey("up")
LOGIN = replace(grant(), id="first")
NOW = LOGIN.token.obtained_at
"""When every login is made, and taken back."""


class Interrupted(LocalStore):
    """A store that can be away, and counts attempts to set a key that another may have set."""

    is_away = False
    _adds = 0

    async def claimed(self, attempts: int) -> None:
        """Returns once there were so many."""
        while self._adds < attempts:
            await anyio.lowlevel.checkpoint()

    def _reached(self) -> None:
        if self.is_away:
            raise StoreUnavailable("away")

    async def get(self, key: str, wait: float = 0) -> bytes | None:
        self._reached()
        return await super().get(key, wait)

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        self._reached()
        await super().put(key, value, ttl)

    async def add(self, key: str, value: bytes, ttl: float) -> bool:
        self._reached()
        self._adds += 1
        return await super().add(key, value, ttl)

    async def remove(self, key: str, expected: bytes | None = None) -> bool:
        self._reached()
        return await super().remove(key, expected)

    async def replace(self, key: str, value: bytes, ttl: float, expected: bytes | None) -> bool:
        self._reached()
        return await super().replace(key, value, ttl, expected)

    async def names(self, prefix: str) -> Sequence[str]:
        self._reached()
        return await super().names(prefix)

    async def lose_all(self) -> None:
        for name in await super().names(""):
            await super().remove(name)


def replicas(store: Interrupted, *secrets: bytes) -> list[SharedGrants]:
    return [SharedGrants(store, Sealer(*secrets or (b"secret",), label=label), wall=lambda: NOW) for label in "abc"]


async def test_what_one_replica_saves_another_loads_and_hears_of() -> None:
    a, b, _ = replicas(Interrupted())
    told: list[GrantKey] = []
    a.tell = told.append
    assert await b.load(KEY) is None
    before = b.version(KEY)
    await a.save(LOGIN)
    assert told == [KEY]
    b.note_change(KEY)
    assert b.version(KEY) != before
    assert await b.load(KEY) == LOGIN
    assert await b.all() == [LOGIN]
    await b.delete(KEY)
    assert await a.load(KEY) is None
    assert await a.all() == []


async def test_the_store_holds_neither_tokens_nor_names_in_clear() -> None:
    store = Interrupted()
    a = replicas(store)[0]
    await a.save(replace(LOGIN, principal="ann-the-principal"))
    await a.register("https://issuer.example", "http://127.0.0.1/", ClientIdentity("client-of-ours", "its-secret"))
    names = await store.names("")
    held = [await store.get(name) for name in names]
    assert len(names) == 2
    for clear in ("access-1", "ann-the-principal", "issuer.example", "its-secret"):
        assert clear not in repr((names, held))


async def test_an_entry_that_was_moved_to_the_name_of_another_grant_is_refused() -> None:
    store = Interrupted()
    a, b, _ = replicas(store)
    await a.save(replace(LOGIN, principal="ann"))
    [name] = await store.names("grant:")
    stolen = await store.take(name)
    assert stolen is not None
    await a.save(replace(LOGIN, principal="bob"))
    [name] = await store.names("grant:")
    await store.put(name, stolen, 60)
    with pytest.raises(StoreFailed, match=r"proxy\.secret"):
        await b.load(GrantKey("up", "bob"))


async def test_a_secret_is_replaced_while_grants_are_refreshed_and_none_is_lost() -> None:
    store = Interrupted()
    await replicas(store, b"old")[0].save(LOGIN)
    await replicas(store, b"old")[0].register("https://as", "http://127.0.0.1/", ClientIdentity("me"))
    a, b, c = replicas(store, b"new", b"old")
    async with anyio.create_task_group() as tasks:
        for each in (a, b, c):
            tasks.start_soon(each.renew)
        tasks.start_soon(a.update, replace(LOGIN, generation=2))
    newest = replicas(store, b"new")[0]
    assert await newest.load(KEY) == replace(LOGIN, generation=2)
    assert await newest.registration("https://as", "http://127.0.0.1/") == ClientIdentity("me")
    with pytest.raises(StoreFailed, match="another secret"):
        await replicas(store, b"old")[0].load(KEY)


async def test_a_refresh_neither_undoes_a_later_one_nor_a_login_nor_a_revocation() -> None:
    a, b, _ = replicas(Interrupted())
    await a.save(LOGIN)
    third = await a.update(replace(LOGIN, generation=3))
    assert await b.update(replace(LOGIN, generation=2)) == third
    later = replace(LOGIN, id="later")
    await b.save(later)
    assert await a.update(replace(LOGIN, generation=4)) == later
    assert await a.load(KEY) == later
    await b.delete(KEY)
    await a.update(replace(later, generation=2))
    assert await a.load(KEY) is None
    assert await b.load(KEY) is None


async def test_while_the_store_is_away_what_is_known_serves_refreshes_are_held_and_logins_are_refused() -> None:
    store = Interrupted()
    a, b, _ = replicas(store)
    await a.save(LOGIN)
    store.is_away = True
    assert await a.load(KEY) == LOGIN
    renewed = replace(LOGIN, generation=2)
    assert await a.update(renewed) == renewed
    assert await a.load(KEY) == renewed
    with pytest.raises(StoreFailed, match="no login can be made until"):
        await a.save(replace(LOGIN, id="later"))
    with pytest.raises(StoreFailed):
        await b.load(KEY)
    own = replace(grant(), upstream="own")
    await a.save(own)
    store.is_away = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.run)
        with anyio.fail_after(GUARD):
            while await b.load(KEY) != renewed or await b.load(GrantKey("own")) != own:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_a_refresh_token_that_was_redeemed_is_never_loaded_again_though_its_grant_was_still_to_be_stored() -> (
    None
):
    store = Interrupted()
    a, b, _ = replicas(store)
    await a.save(LOGIN)
    store.is_away = True
    await a.update(replace(LOGIN, generation=2))
    store.is_away = False
    third = await a.update(replace(LOGIN, generation=3))
    assert await a.load(KEY) == third
    await a.settle()
    assert await a.load(KEY) == await b.load(KEY) == third


async def test_a_refresh_that_comes_while_an_earlier_one_is_being_stored_is_what_is_known() -> None:
    store = Slow()
    a = replicas(store)[0]
    await a.save(LOGIN)
    store.is_away = True
    await a.update(replace(LOGIN, generation=2))
    store.is_away = False
    async with anyio.create_task_group() as tasks:
        store.answers = anyio.Event()
        tasks.start_soon(a.settle)
        await anyio.wait_all_tasks_blocked()
        later, store.answers = store.answers, None
        third = await a.update(replace(LOGIN, generation=3))
        later.set()
    store.is_away = True
    assert await a.load(KEY) == third


class Slow(Interrupted):
    """A store whose answers to changes come later, where that is told."""

    answers: anyio.Event | None = None

    async def replace(self, key: str, value: bytes, ttl: float, expected: bytes | None) -> bool:
        answers = self.answers
        replaced = await super().replace(key, value, ttl, expected)
        if answers is not None:
            await answers.wait()
        return replaced


async def test_a_grant_that_was_taken_back_while_the_store_was_away_is_gone_here_at_once_and_then_everywhere() -> None:
    store = Interrupted()
    a, b, _ = replicas(store)
    await a.save(LOGIN)
    assert await b.load(KEY) == LOGIN
    store.is_away = True
    await a.delete(KEY)
    assert await a.load(KEY) is None
    assert await b.load(KEY) == LOGIN
    with pytest.raises(StoreFailed):
        await a.settle()
    store.is_away = False
    await a.settle()
    assert await b.load(KEY) is None


async def test_a_revocation_that_is_told_late_leaves_a_login_alone_that_came_meanwhile() -> None:
    store = Interrupted()
    a, b, _ = replicas(store)
    await a.save(LOGIN)
    store.is_away = True
    await a.delete(KEY)
    store.is_away = False
    later = replace(LOGIN, id="later")
    await b.save(later)
    await a.settle()
    assert await a.load(KEY) == later
    assert await b.load(KEY) == later


async def entry(store: Interrupted) -> tuple[str, bytes]:
    """The only grant in the store, as whoever can write there copies it."""
    (name,) = await store.names("grant:")
    value = await store.get(name)
    assert value is not None
    return name, value


async def test_a_login_that_was_taken_back_is_not_used_again_however_it_is_put_back_into_the_store() -> None:
    store = Interrupted()
    a, b, c = replicas(store)
    await a.save(LOGIN)
    assert await b.load(KEY) == LOGIN
    name, value = await entry(store)
    await a.delete(KEY)
    assert await c.load(KEY) is None, "it never used the login, and has heard that it was taken back"
    assert await b.load(KEY) is None
    for each in (a, b, c):
        await store.put(name, value, 1000)
        assert await each.load(KEY) is None
        assert await each.all() == []
        await each.settle()
        assert (await entry(store))[1] != value, "it is taken out"
    refreshed = replace(LOGIN, generation=2)
    await b.update(refreshed)
    b.learn(refreshed)
    assert await b.load(KEY) is None
    later = replace(LOGIN, id="later")
    await a.save(later)
    assert [await each.load(KEY) for each in (a, b, c)] == [later] * 3
    await store.put(name, value, 1000)
    assert [await each.load(KEY) for each in (a, b, c)] == [None] * 3


async def test_nor_is_a_login_from_before_the_one_that_was_taken_back() -> None:
    store = Interrupted()
    old = replace(LOGIN, id="old", token=replace(LOGIN.token, obtained_at=NOW - SKEW - 1))
    a, b, _ = replicas(store)
    await a.save(old)
    name, value = await entry(store)
    await a.save(LOGIN)
    await a.delete(KEY)
    assert await b.load(KEY) is None
    await store.put(name, value, 1000)
    assert await a.load(KEY) is None
    assert await b.load(KEY) is None


async def test_a_store_that_lost_its_data_is_filled_again_by_who_knows_the_grant() -> None:
    store = Interrupted()
    a, b, c = replicas(store)
    await a.save(LOGIN)
    assert await b.load(KEY) == LOGIN
    await store.lose_all()
    assert await c.load(KEY) is None
    assert await b.load(KEY) == LOGIN
    await b.settle()
    assert await c.load(KEY) == LOGIN


async def test_an_entry_that_cannot_be_opened_holds_up_no_other_grant() -> None:
    store = Interrupted()
    stranger = replicas(store, b"another")[0]
    await stranger.save(LOGIN)
    a, b, _ = replicas(store)
    await a.update(replace(LOGIN, generation=2))
    other = replace(LOGIN, upstream="other")
    store.is_away = True
    await a.update(other)
    store.is_away = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.run)
        with anyio.fail_after(GUARD):
            while await b.load(other.key) != other:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert await a.load(KEY) == replace(LOGIN, generation=2)


async def test_after_a_gap_what_the_store_lost_is_stored_again_though_it_is_not_used() -> None:
    store = Interrupted()
    a, _, c = replicas(store)
    await a.save(LOGIN)
    withdrawn = replace(LOGIN, principal="ann")
    await a.save(withdrawn)
    await store.lose_all()
    await c.delete(withdrawn.key)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.run)
        a.note_gap()
        with anyio.fail_after(GUARD):
            while await c.load(KEY) != LOGIN:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert await c.load(withdrawn.key) is None


async def test_a_pair_that_a_replica_could_not_store_before_it_ended_is_stored_by_who_was_given_it() -> None:
    store = Interrupted()
    a, b, c = replicas(store)
    await a.save(LOGIN)
    renewed = replace(LOGIN, generation=2)
    b.learn(renewed)
    b.learn(LOGIN)
    assert await b.load(KEY) == renewed
    await b.settle()
    assert await c.load(KEY) == renewed


async def test_a_grant_of_a_login_that_was_taken_back_does_not_hide_the_next_one() -> None:
    before = replace(LOGIN, generation=7)
    after = replace(LOGIN, id="second", token=replace(LOGIN.token, obtained_at=LOGIN.token.obtained_at + 60))
    for told in ([before, after], [after, before]):
        store = Interrupted()
        a = replicas(store)[0]
        for each in told:
            a.learn(each)
        store.is_away = True
        assert await a.load(KEY) == after, "a generation counts within one login"


async def test_after_a_gap_every_grant_is_read_again() -> None:
    a = replicas(Interrupted())[0]
    keys = [KEY, GrantKey("up", "ann"), GrantKey("other")]
    before = [a.version(key) for key in keys]
    a.note_gap()
    assert all(a.version(key) != version for key, version in zip(keys, before, strict=True))


async def test_what_is_remembered_is_bounded() -> None:
    a = SharedGrants(Interrupted(), Sealer(b"secret", label="a"), max_known=8)
    for number in range(20):
        await a.save(replace(LOGIN, principal=f"user-{number}"))
    assert len(a._known) == 8
    assert len(await a.all()) == 20


async def test_a_pair_that_was_held_is_not_used_again_after_its_successor() -> None:
    store = Interrupted()
    a, b, _ = replicas(store)
    await a.save(LOGIN)
    store.is_away = True
    await a.update(replace(LOGIN, generation=2))
    store.is_away = False
    third = await a.update(replace(LOGIN, generation=3))
    assert await a.load(KEY) == third
    store.is_away = True
    await a.update(replace(LOGIN, generation=4))
    store.is_away = False
    fifth = await b.update(replace(LOGIN, generation=5))
    assert await a.load(KEY) == fifth
    await a.settle()
    assert await b.load(KEY) == fifth


async def test_a_refresh_that_ends_after_its_grant_was_taken_back_does_not_bring_it_back() -> None:
    store = Interrupted()
    a, b, _ = replicas(store)
    await a.save(LOGIN)
    store.is_away = True
    await a.delete(KEY)
    await a.update(replace(LOGIN, generation=2))
    assert await a.load(KEY) is None
    store.is_away = False
    await a.settle()
    assert await b.load(KEY) is None
