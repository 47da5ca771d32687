"""The file of grants: encrypted, for one user, whole after each change, shared by processes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from mcproxy.sealing import Sealer
from mcproxy.upstream.oauth.grants import GrantKey
from mcproxy.upstream.oauth.registration import ClientIdentity
from mcproxy.upstream.oauth.storage.store import FileStore, GrantStore, MemoryStore, StoreFailed
from tests.upstream.oauth.test_grants import grant

SEALER = Sealer(b"secret")


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> GrantStore:
    return FileStore(tmp_path / "state" / "grants", SEALER) if request.param == "file" else MemoryStore()


def test_what_was_saved_is_loaded_until_it_is_deleted(store: GrantStore) -> None:
    versions = [store.version]
    assert store.load(GrantKey("up")) is None
    store.save(grant())
    versions.append(store.version)
    assert store.load(GrantKey("up")) == grant()
    assert store.all() == [grant()]
    store.delete(GrantKey("up"))
    versions.append(store.version)
    assert store.load(GrantKey("up")) is None
    assert len(set(map(str, versions))) == 3, "each change is seen"


def test_each_principal_has_its_own_grant_beside_the_gateways(store: GrantStore) -> None:
    names = ["", "ann", 'a"],["b', "up"]
    for name in names:
        store.save(msgspec.structs.replace(grant(), principal=name))
    store.delete(GrantKey("up", "ann"))
    assert store.load(GrantKey("up", "ann")) is None
    assert [each.principal for each in store.all()] == ["", 'a"],["b', "up"]
    assert store.load(GrantKey('up","', "")) is None


def test_a_registration_is_of_one_issuer_and_one_redirect(store: GrantStore) -> None:
    client = ClientIdentity("me", "secret")
    store.register("https://as", "http://127.0.0.1:1/", client)
    assert store.registration("https://as", "http://127.0.0.1:1/") == client
    assert store.registration("https://as", "http://127.0.0.1:2/") is None
    assert store.registration("https://other", "http://127.0.0.1:1/") is None


def test_r44_the_file_shows_no_secret_and_is_its_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "grants"
    FileStore(path, SEALER).save(grant(refresh="sentinel-refresh-token"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"sentinel" not in path.read_bytes()
    assert b"access-1" not in path.read_bytes()


def test_another_key_or_a_damaged_file_is_told_with_the_remedy_and_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "grants"
    FileStore(path, SEALER).save(grant())
    written = path.read_bytes()
    other = FileStore(path, Sealer(b"another"))
    with pytest.raises(StoreFailed, match=r"proxy\.secret"):
        other.load(GrantKey("up"))
    with pytest.raises(StoreFailed, match=r"proxy\.secret"):
        other.save(grant())
    with pytest.raises(StoreFailed, match=r"proxy\.secret"):
        other.delete(GrantKey("up"))
    assert path.read_bytes() == written


def test_a_renewed_file_opens_without_the_secret_that_it_was_sealed_with(tmp_path: Path) -> None:
    path = tmp_path / "grants"
    FileStore(path, Sealer(b"old")).save(grant())
    FileStore(path, Sealer(b"new", b"old")).renew()
    assert FileStore(path, Sealer(b"new")).load(GrantKey("up")) == grant()
    before = FileStore(path, SEALER).version
    FileStore(path, Sealer(b"new", b"old")).renew()
    assert FileStore(path, SEALER).version == before, "what is sealed with the first secret stays as it is"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="cannot write"):
        FileStore(tmp_path / "file" / "grants", SEALER).save(grant())


def test_r65_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "grants"
    names = [f"up-{number}" for number in range(24)]

    def save(name: str) -> None:
        FileStore(path, SEALER).save(msgspec.structs.replace(grant(), upstream=name))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(save, names))
    assert sorted(each.upstream for each in FileStore(path, SEALER).all()) == sorted(names)
    assert sorted(os.listdir(tmp_path)) == ["grants", "grants.lock"]
