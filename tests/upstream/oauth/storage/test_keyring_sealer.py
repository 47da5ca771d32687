"""The twin of `mcproxy.upstream.oauth.storage.keyring_sealer`: grants sealed under a key that a keyring keeps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcproxy.sealing import Sealer
from mcproxy.upstream.oauth.grants import Grant, GrantKey
from mcproxy.upstream.oauth.registration import ClientIdentity
from mcproxy.upstream.oauth.storage.keyring_sealer import KeyringSealer
from mcproxy.upstream.oauth.storage.store import FileStore, StoreFailed
from mcproxy.upstream.oauth.tokens import Token

pytestmark = pytest.mark.anyio

SECRET = Sealer(b"the gateway's own secret")
GRANT = Grant(
    "up", "https://a.example/mcp", "https://a.example/mcp", "https://as.example", ClientIdentity("me"), ("read",),
    Token("access", None, 0.0, "refresh"),
)  # fmt: skip


class FakeKeyring:
    """Holds texts, and counts what it is asked. Locked, it fails as a backend does."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], str] = {}
        self.asked = 0
        self.locked = False
        self.forgets = False

    def get_password(self, service_name: str, username: str) -> str | None:
        self.asked += 1
        if self.locked:
            raise RuntimeError("the collection is locked")
        return self.held.get((service_name, username))

    def set_password(self, service_name: str, username: str, password: str) -> None:
        if self.locked:
            raise RuntimeError("the collection is locked")
        if not self.forgets:
            self.held[service_name, username] = password


def store(folder: Path, keyring: FakeKeyring) -> FileStore:
    return FileStore(folder / "grants", KeyringSealer(keyring, SECRET, (RuntimeError,)))


async def test_what_one_process_sealed_another_opens_with_the_key_of_the_keyring(tmp_path: Path) -> None:
    keyring = FakeKeyring()
    await store(tmp_path, keyring).save(GRANT)
    assert await store(tmp_path, keyring).load(GrantKey("up")) == GRANT
    assert list(keyring.held) == [("mcproxy", "grants")]
    assert "refresh" not in str(keyring.held), "what is stored stays in the file"


async def test_without_the_keyring_the_file_does_not_open(tmp_path: Path) -> None:
    await store(tmp_path, FakeKeyring()).save(GRANT)
    with pytest.raises(StoreFailed, match="under another key"):
        await FileStore(tmp_path / "grants", SECRET).load(GrantKey("up"))
    with pytest.raises(StoreFailed, match="under another key"):
        await store(tmp_path, FakeKeyring()).load(GrantKey("up"))


async def test_what_was_sealed_before_the_keyring_was_chosen_is_opened_and_sealed_anew(tmp_path: Path) -> None:
    await FileStore(tmp_path / "grants", SECRET).save(GRANT)
    keyring = FakeKeyring()
    chosen = store(tmp_path, keyring)
    assert await chosen.load(GrantKey("up")) == GRANT
    assert keyring.held == {}, "reading makes no key"
    await chosen.renew()
    assert await chosen.load(GrantKey("up")) == GRANT
    with pytest.raises(StoreFailed):
        await FileStore(tmp_path / "grants", SECRET).load(GrantKey("up"))
    before = chosen.version(GrantKey("up"))
    await chosen.renew()
    assert chosen.version(GrantKey("up")) == before


async def test_a_keyring_is_asked_for_its_key_once(tmp_path: Path) -> None:
    keyring = FakeKeyring()
    it = store(tmp_path, keyring)
    await it.save(GRANT)
    asked = keyring.asked
    for _ in range(5):
        await it.load(GrantKey("up"))
    assert keyring.asked == asked


async def test_a_keyring_that_is_locked_is_told_and_serves_once_it_is_open(tmp_path: Path) -> None:
    keyring = FakeKeyring()
    it = store(tmp_path, keyring)
    keyring.locked = True
    with pytest.raises(StoreFailed, match=r"cannot be used \(the collection is locked\): unlock it, or set"):
        await it.save(GRANT)
    keyring.locked = False
    await it.save(GRANT)
    assert await it.load(GrantKey("up")) == GRANT


async def test_a_keyring_that_forgets_loses_no_grant_silently(tmp_path: Path) -> None:
    keyring = FakeKeyring()
    keyring.forgets = True
    with pytest.raises(StoreFailed, match="does not keep what is stored"):
        await store(tmp_path, keyring).save(GRANT)


def test_where_the_system_has_no_keyring_the_command_says_so(tmp_path: Path) -> None:
    pytest.importorskip("keyring")
    (tmp_path / "mcproxy.yaml").write_text(
        "mcpServers: {web: {url: 'http://127.0.0.1:9', oauth: {}}}\nproxy: {grant_key: keyring}\n"
    )
    (tmp_path / "state" / "mcproxy").mkdir(parents=True)
    (tmp_path / "state" / "mcproxy" / "grants").write_text("sealed")
    environ = {**os.environ, "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    ran = subprocess.run(
        [sys.executable, "-m", "mcproxy", "grants"],
        cwd=tmp_path,
        env={**environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "the system's keyring cannot be used (No recommended backend was available" in ran.stderr
    assert "Traceback" not in ran.stderr
