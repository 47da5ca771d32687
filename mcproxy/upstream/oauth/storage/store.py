"""Grants and registrations that outlive the process: one encrypted file that several processes may share.

What is stored is on the disk when `save` returns: a refresh token that was redeemed is gone at its server (requirement
R65). Files are read and written in threads.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, TypeVar

import anyio.to_thread
import msgspec

from mcproxy.sealing import Unsealable
from mcproxy.upstream.oauth.grants import Grant, GrantKey
from mcproxy.upstream.oauth.registration import ClientIdentity

PURPOSE: Final = "oauth grants"

T = TypeVar("T")


class StoreFailed(Exception):
    """What is stored cannot be read or written. The text says why, and what to do."""


class GrantStore(Protocol):
    """Each method may raise StoreFailed."""

    async def load(self, key: GrantKey) -> Grant | None: ...

    async def save(self, grant: Grant) -> None:
        """Stores what a login gave, in place of any other grant of its key."""

    async def update(self, grant: Grant) -> Grant:
        """Stores a grant with its next token, unless another login replaced it; returns the grant that is stored."""

    async def delete(self, key: GrantKey) -> None: ...

    async def all(self) -> list[Grant]: ...

    async def registration(self, issuer: str, redirect_uri: str) -> ClientIdentity | None:
        """What a registration at that issuer gave."""

    async def register(self, issuer: str, redirect_uri: str, client: ClientIdentity) -> None: ...

    async def renew(self) -> None:
        """Seals what is stored with the first secret, so that the one it was sealed with can be taken away."""

    def version(self, key: GrantKey) -> object:
        """Another value after each change of a grant, by whichever process; cheap, and never fails."""


class _Contents(msgspec.Struct):
    grants: dict[str, Grant] = {}
    """By their keys, as JSON."""
    registrations: dict[str, ClientIdentity] = {}

    def update(self, grant: Grant) -> Grant:
        """As `GrantStore.update`."""
        id = _grant_id(grant.key)
        held = self.grants.get(id)
        if held is not None and held.id != grant.id:
            return held
        self.grants[id] = grant
        return grant


class MemoryStore:
    """A `GrantStore` that ends with its process, for one that may keep nothing, and for tests."""

    def __init__(self) -> None:
        self._contents = _Contents()
        self._changes = 0

    async def load(self, key: GrantKey) -> Grant | None:
        return self._contents.grants.get(_grant_id(key))

    async def save(self, grant: Grant) -> None:
        self._contents.grants[_grant_id(grant.key)] = grant
        self._changes += 1

    async def update(self, grant: Grant) -> Grant:
        self._changes += 1
        return self._contents.update(grant)

    async def delete(self, key: GrantKey) -> None:
        self.forget(key)

    def forget(self, key: GrantKey) -> None:
        """As `delete`, for callers that cannot wait."""
        self._contents.grants.pop(_grant_id(key), None)
        self._changes += 1

    async def all(self) -> list[Grant]:
        return list(self._contents.grants.values())

    async def registration(self, issuer: str, redirect_uri: str) -> ClientIdentity | None:
        return self._contents.registrations.get(_registration_id(issuer, redirect_uri))

    async def register(self, issuer: str, redirect_uri: str, client: ClientIdentity) -> None:
        self._contents.registrations[_registration_id(issuer, redirect_uri)] = client

    async def renew(self) -> None:
        return

    def version(self, key: GrantKey) -> object:
        return self._changes


class Seals(Protocol):
    """As `sealing.Sealer`; each method may raise StoreFailed too."""

    def seal(self, purpose: str, payload: bytes) -> str: ...

    def open(self, purpose: str, token: str) -> bytes:
        """Raises Unsealable."""

    def is_outdated(self, purpose: str, token: str) -> bool:
        """Whether the token opens, and is to be sealed anew."""


class FileStore:
    """A `GrantStore` in a file that this user alone may read (0600), sealed under the gateway's key."""

    def __init__(self, path: Path, sealer: Seals) -> None:
        self._path = path
        self._sealer = sealer
        self._reading = threading.Lock()
        self._latest: tuple[object, _Contents] = (None, _Contents())
        """What was read last, and the version of the file before that."""

    async def load(self, key: GrantKey) -> Grant | None:
        return (await self._contents()).grants.get(_grant_id(key))

    async def save(self, grant: Grant) -> None:
        await self._change(lambda contents: contents.grants.__setitem__(_grant_id(grant.key), grant))

    async def update(self, grant: Grant) -> Grant:
        return await self._change(lambda contents: contents.update(grant))

    async def delete(self, key: GrantKey) -> None:
        await self._change(lambda contents: contents.grants.pop(_grant_id(key), None))

    async def all(self) -> list[Grant]:
        return list((await self._contents()).grants.values())

    async def registration(self, issuer: str, redirect_uri: str) -> ClientIdentity | None:
        return (await self._contents()).registrations.get(_registration_id(issuer, redirect_uri))

    async def register(self, issuer: str, redirect_uri: str, client: ClientIdentity) -> None:
        id = _registration_id(issuer, redirect_uri)
        await self._change(lambda contents: contents.registrations.__setitem__(id, client))

    async def renew(self) -> None:
        await anyio.to_thread.run_sync(self._renew)

    def version(self, key: GrantKey) -> object:
        return self._version

    @property
    def _version(self) -> object:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    async def _contents(self) -> _Contents:
        return await anyio.to_thread.run_sync(self._read_once)

    async def _change(self, change: Callable[[_Contents], T]) -> T:
        return await anyio.to_thread.run_sync(self._changed, change)

    def _read_once(self) -> _Contents:
        """What the file holds, opened once for all grants, and again after each change."""
        with self._reading:
            # Before it is read: a file that is replaced in between is read again next time.
            version = self._version
            if version is None or version != self._latest[0]:
                self._latest = (version, self._read())
            return self._latest[1]

    def _read(self) -> _Contents:
        sealed = self._sealed()
        if sealed is None:
            return _Contents()
        try:
            return msgspec.json.decode(self._sealer.open(PURPOSE, sealed), type=_Contents)
        except (Unsealable, msgspec.DecodeError) as error:
            raise StoreFailed(
                f"{self._path} was written under another key than the present one (proxy.secret, proxy.grant_key), "
                "or is damaged: set the key that it was written under, or remove the file and log in again"
            ) from error

    def _sealed(self) -> str | None:
        try:
            return self._path.read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StoreFailed(f"cannot read {self._path}: {error}") from error

    def _renew(self) -> None:
        sealed = self._sealed()
        if sealed is not None and self._sealer.is_outdated(PURPOSE, sealed):
            self._changed(lambda contents: None)

    def _changed(self, change: Callable[[_Contents], T]) -> T:
        with self._locked():
            contents = self._read()
            result = change(contents)
            self._write(self._sealer.seal(PURPOSE, msgspec.json.encode(contents)))
            return result

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among all processes that use the file, through a file beside it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self._path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreFailed(f"cannot write {self._path}: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _write(self, sealed: str) -> None:
        """Whole or not at all, and on the disk."""
        try:
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
                file.write(sealed)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StoreFailed(f"cannot write {self._path}: {error}") from error


def _grant_id(key: GrantKey) -> str:
    """The key as one text, unambiguous for any names in it."""
    return msgspec.json.encode(key).decode()


def _registration_id(issuer: str, redirect_uri: str) -> str:
    return f"{issuer} {redirect_uri}"
