"""The file of grants: encrypted, for one user, whole after each change, shared by processes."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
import pytest

from mcproxy.sealing import Sealer
from mcproxy.upstream.oauth.grants import Grant, GrantKey
from mcproxy.upstream.oauth.registration import ClientIdentity
from mcproxy.upstream.oauth.storage.store import (
    FIRST_RETRY,
    LONGEST_RETRY,
    FileStore,
    GrantStore,
    MemoryStore,
    StoreFailed,
)
from tests.upstream.oauth.test_grants import grant

pytestmark = pytest.mark.anyio

SEALER = Sealer(b"secret")


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> GrantStore:
    return FileStore(tmp_path / "state" / "grants", SEALER) if request.param == "file" else MemoryStore()


async def test_what_was_saved_is_loaded_until_it_is_deleted(store: GrantStore) -> None:
    versions = [store.version(GrantKey("up"))]
    assert await store.load(GrantKey("up")) is None
    await store.save(grant())
    versions.append(store.version(GrantKey("up")))
    assert await store.load(GrantKey("up")) == grant()
    assert await store.all() == [grant()]
    await store.delete(GrantKey("up"))
    versions.append(store.version(GrantKey("up")))
    assert await store.load(GrantKey("up")) is None
    assert len(set(map(str, versions))) == 3, "each change is seen"


async def test_each_principal_has_its_own_grant_beside_the_gateways(store: GrantStore) -> None:
    names = ["", "ann", 'a"],["b', "up"]
    for name in names:
        await store.save(msgspec.structs.replace(grant(), principal=name))
    await store.delete(GrantKey("up", "ann"))
    assert await store.load(GrantKey("up", "ann")) is None
    assert [each.principal for each in await store.all()] == ["", 'a"],["b', "up"]
    assert await store.load(GrantKey('up","', "")) is None


async def test_a_registration_is_of_one_issuer_and_one_redirect(store: GrantStore) -> None:
    client = ClientIdentity("me", "secret")
    await store.register("https://as", "http://127.0.0.1:1/", client)
    assert await store.registration("https://as", "http://127.0.0.1:1/") == client
    assert await store.registration("https://as", "http://127.0.0.1:2/") is None
    assert await store.registration("https://other", "http://127.0.0.1:1/") is None


async def test_r44_the_file_shows_no_secret_and_is_its_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "grants"
    await FileStore(path, SEALER).save(grant(refresh="sentinel-refresh-token"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"sentinel" not in path.read_bytes()
    assert b"access-1" not in path.read_bytes()


async def test_another_key_or_a_damaged_file_is_told_with_the_remedy_and_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "grants"
    await FileStore(path, SEALER).save(grant())
    written = path.read_bytes()
    other = FileStore(path, Sealer(b"another"))
    with pytest.raises(StoreFailed, match=r"proxy\.secret"):
        await other.load(GrantKey("up"))
    with pytest.raises(StoreFailed, match=r"proxy\.secret"):
        await other.save(grant())
    with pytest.raises(StoreFailed, match=r"proxy\.secret"):
        await other.delete(GrantKey("up"))
    assert path.read_bytes() == written


async def test_a_renewed_file_opens_without_the_secret_that_it_was_sealed_with(tmp_path: Path) -> None:
    path = tmp_path / "grants"
    await FileStore(path, Sealer(b"old")).save(grant())
    await FileStore(path, Sealer(b"new", b"old")).renew()
    assert await FileStore(path, Sealer(b"new")).load(GrantKey("up")) == grant()
    before = FileStore(path, SEALER).version(GrantKey("up"))
    await FileStore(path, Sealer(b"new", b"old")).renew()
    assert FileStore(path, SEALER).version(GrantKey("up")) == before, (
        "what is sealed with the first secret stays as it is"
    )


async def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="cannot write"):
        await FileStore(tmp_path / "file" / "grants", SEALER).save(grant())


async def test_r65_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "grants"
    names = [f"up-{number}" for number in range(24)]

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(FileStore(path, SEALER).save, msgspec.structs.replace(grant(), upstream=name))
    assert sorted(each.upstream for each in await FileStore(path, SEALER).all()) == sorted(names)
    assert sorted(os.listdir(tmp_path)) == ["grants", "grants.lock", "grants.spare"]


@dataclass
class CountingSealer:
    """Counts how often it opened something."""

    opened: int = 0

    def seal(self, purpose: str, payload: bytes) -> str:
        return SEALER.seal(purpose, payload)

    def open(self, purpose: str, token: str) -> bytes:
        self.opened += 1
        return SEALER.open(purpose, token)

    def is_outdated(self, purpose: str, token: str) -> bool:
        return SEALER.is_outdated(purpose, token)


async def test_a_file_is_opened_once_for_all_its_grants_and_again_after_another_process_changed_it(
    tmp_path: Path,
) -> None:
    path, sealer = tmp_path / "grants", CountingSealer()
    other, store = FileStore(path, SEALER), FileStore(path, sealer)
    names = [f"user-{number}" for number in range(8)]
    for name in names:
        await other.save(msgspec.structs.replace(grant(), principal=name))
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(store.load, GrantKey("up", name))
    assert sealer.opened == 1
    await other.delete(GrantKey("up", names[0]))
    assert await store.load(GrantKey("up", names[0])) is None
    assert await store.load(GrantKey("up", names[1])) is not None
    assert sealer.opened == 2


async def test_a_refresh_leaves_a_later_login_alone(store: GrantStore) -> None:
    first = msgspec.structs.replace(grant(), id="first")
    later = msgspec.structs.replace(grant(generation=2), id="later")
    await store.save(first)
    assert await store.update(msgspec.structs.replace(first, generation=2)) == msgspec.structs.replace(
        first, generation=2
    )
    await store.save(later)
    assert await store.update(msgspec.structs.replace(first, generation=3)) == later
    assert await store.load(GrantKey("up")) == later


async def test_a_refresh_does_not_bring_back_a_login_that_was_taken_back_meanwhile(store: GrantStore) -> None:
    login = msgspec.structs.replace(grant(), id="first")
    renewed = msgspec.structs.replace(login, generation=2)
    await store.save(login)
    await store.delete(login.key)
    assert await store.update(renewed) == renewed
    assert await store.load(login.key) is None
    own = grant(generation=2)
    assert await store.update(own) == own
    assert await store.load(own.key) == own, "the gateway got it for itself, and nobody logs out of it"


class FullDisk(FileStore):
    """A store whose disk may be full. `now` is its clock."""

    is_full = False
    now = 0.0
    writes = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path, SEALER, lambda: self.now)

    def _write(self, sealed: str) -> None:
        self.writes += 1
        if self.is_full:
            raise StoreFailed("cannot write: no space left on device")
        super()._write(sealed)


LOGIN = msgspec.structs.replace(grant(refresh="first"), id="login")


def renewed(generation: int) -> Grant:
    return msgspec.structs.replace(grant(refresh=f"token-{generation}"), id="login", generation=generation)


async def test_a_refreshed_pair_that_cannot_be_written_serves_and_is_written_with_the_next_change(
    tmp_path: Path,
) -> None:
    store, other = FullDisk(tmp_path / "grants"), FileStore(tmp_path / "grants", SEALER)
    await store.save(LOGIN)
    before = store.version(LOGIN.key)
    store.is_full = True
    assert await store.update(renewed(2)) == renewed(2)
    assert store.version(LOGIN.key) != before
    assert await store.load(LOGIN.key) == renewed(2)
    assert await store.all() == [renewed(2)]
    assert await other.load(LOGIN.key) == LOGIN
    with pytest.raises(StoreFailed, match="no space"):
        await store.save(msgspec.structs.replace(LOGIN, id="another"))
    store.is_full = False
    await store.register("https://as", "http://127.0.0.1:1/", ClientIdentity("me"))
    assert await other.load(LOGIN.key) == renewed(2)
    assert await store.load(LOGIN.key) == renewed(2)


class NoSpace(FileStore):
    """A store whose disk has room for no new file, or for no more than there is, as long as `is_full`."""

    is_full = False

    def _replace(self, path: Path, data: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._replace(path, data)


async def test_r65_a_pair_that_is_refreshed_while_the_disk_is_full_outlives_the_process(tmp_path: Path) -> None:
    store = NoSpace(tmp_path / "grants", SEALER)
    await store.save(LOGIN)
    for generation in (2, 3):
        store.is_full = True
        assert await store.update(renewed(generation)) == renewed(generation)
        assert await FileStore(tmp_path / "grants", SEALER).load(LOGIN.key) == renewed(generation)
        assert (tmp_path / "grants").stat().st_mode & 0o777 == 0o600
        store.is_full = False
        await store.register("https://as", "http://127.0.0.1:1/", ClientIdentity("me"))  # there is room again
    store.is_full = True
    await store.update(renewed(4))
    assert await store.update(renewed(5)) == renewed(5), "the spare file is used up: it is held in memory"
    assert await FileStore(tmp_path / "grants", SEALER).load(LOGIN.key) == renewed(4)
    assert await store.load(LOGIN.key) == renewed(5)


async def test_what_cannot_be_written_is_tried_again_ever_more_rarely_while_it_is_used(tmp_path: Path) -> None:
    store, other = FullDisk(tmp_path / "grants"), FileStore(tmp_path / "grants", SEALER)
    await store.save(LOGIN)
    store.is_full = True
    await store.update(renewed(2))
    tried = store.writes
    for wait in (FIRST_RETRY, 2 * FIRST_RETRY, 4 * FIRST_RETRY):
        store.now += wait - 1
        version = store.version(LOGIN.key)
        assert await store.load(LOGIN.key) == renewed(2)
        assert store.writes == tried
        store.now += 1
        assert store.version(LOGIN.key) != version, "so that it is looked at again"
        assert await store.load(LOGIN.key) == renewed(2)
        tried += 1
        assert store.writes == tried
    store.is_full = False
    store.now += LONGEST_RETRY
    assert await store.load(LOGIN.key) == await other.load(LOGIN.key) == renewed(2)
    store.now += LONGEST_RETRY
    await store.load(LOGIN.key)
    assert store.writes == tried + 1, "there is nothing more to write"


async def test_a_pair_that_could_not_be_written_gives_way_to_a_later_login_and_to_a_logout(tmp_path: Path) -> None:
    store, other = FullDisk(tmp_path / "grants"), FileStore(tmp_path / "grants", SEALER)
    await store.save(LOGIN)
    store.is_full = True
    await store.update(renewed(2))
    later = msgspec.structs.replace(LOGIN, id="later")
    await other.save(later)
    assert await store.load(LOGIN.key) == later
    await other.delete(LOGIN.key)
    assert await store.load(LOGIN.key) is None
    store.is_full = False
    await store.register("https://as", "http://127.0.0.1:1/", ClientIdentity("me"))
    assert await other.load(LOGIN.key) is None


class WatchedDisk(FullDisk):
    """Remembers which threads change what is held."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_held":
            self.__dict__.setdefault("threads", set()).add(threading.get_ident())
        super().__setattr__(name, value)


async def test_what_is_held_is_changed_by_no_thread_but_that_of_the_event_loop(tmp_path: Path) -> None:
    """Else a pair that could not be written might get lost while others are written."""
    store = WatchedDisk(tmp_path / "grants")
    await store.save(LOGIN)
    store.is_full = True
    await store.update(renewed(2))
    store.is_full = False
    await store.register("https://as", "http://127.0.0.1:1/", ClientIdentity("me"))
    assert await FileStore(tmp_path / "grants", SEALER).load(LOGIN.key) == renewed(2)
    assert store.__dict__["threads"] == {threading.get_ident()}


def test_what_cannot_be_written_leaves_no_file_behind(tmp_path: Path) -> None:
    (tmp_path / "grants").mkdir()
    with pytest.raises(StoreFailed, match="cannot write"):
        FileStore(tmp_path / "grants", SEALER)._write("sealed")
    assert [each.name for each in tmp_path.iterdir()] == ["grants"]
