"""Grants and registrations that outlive the process: one encrypted file that several processes may share.

What is stored is on the disk when `save` returns: a refresh token that was redeemed is gone at its server (requirement
R65). Blocks: call it in a thread.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import msgspec

from mcproxy.sealing import Unsealable
from mcproxy.upstream.oauth.grants import Grant, GrantKey
from mcproxy.upstream.oauth.registration import ClientIdentity

PURPOSE: Final = "oauth grants"


class StoreFailed(Exception):
    """The file cannot be read or written. The text says why, and what to do."""


class GrantStore(Protocol):
    """Each method may raise StoreFailed."""

    def load(self, key: GrantKey) -> Grant | None: ...

    def save(self, grant: Grant) -> None:
        """On the disk when it returns."""

    def delete(self, key: GrantKey) -> None: ...

    def all(self) -> list[Grant]: ...

    def registration(self, issuer: str, redirect_uri: str) -> ClientIdentity | None:
        """What a registration at that issuer gave."""

    def register(self, issuer: str, redirect_uri: str, client: ClientIdentity) -> None: ...

    def renew(self) -> None:
        """Seals what is stored with the first secret, so that the one it was sealed with can be taken away."""

    @property
    def version(self) -> object:
        """Another value after each change, by whichever process; cheap."""


class _Contents(msgspec.Struct):
    grants: dict[str, Grant] = {}
    """By their keys, as JSON."""
    registrations: dict[str, ClientIdentity] = {}


class MemoryStore:
    """A `GrantStore` that ends with its process, for one that may keep nothing, and for tests."""

    def __init__(self) -> None:
        self._contents = _Contents()
        self._changes = 0

    def load(self, key: GrantKey) -> Grant | None:
        return self._contents.grants.get(_grant_id(key))

    def save(self, grant: Grant) -> None:
        self._contents.grants[_grant_id(grant.key)] = grant
        self._changes += 1

    def delete(self, key: GrantKey) -> None:
        self._contents.grants.pop(_grant_id(key), None)
        self._changes += 1

    def all(self) -> list[Grant]:
        return list(self._contents.grants.values())

    def registration(self, issuer: str, redirect_uri: str) -> ClientIdentity | None:
        return self._contents.registrations.get(_registration_id(issuer, redirect_uri))

    def register(self, issuer: str, redirect_uri: str, client: ClientIdentity) -> None:
        self._contents.registrations[_registration_id(issuer, redirect_uri)] = client

    def renew(self) -> None:
        return

    @property
    def version(self) -> object:
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

    def load(self, key: GrantKey) -> Grant | None:
        return self._read().grants.get(_grant_id(key))

    def save(self, grant: Grant) -> None:
        self._change(lambda contents: contents.grants.__setitem__(_grant_id(grant.key), grant))

    def delete(self, key: GrantKey) -> None:
        self._change(lambda contents: contents.grants.pop(_grant_id(key), None))

    def all(self) -> list[Grant]:
        return list(self._read().grants.values())

    def registration(self, issuer: str, redirect_uri: str) -> ClientIdentity | None:
        return self._read().registrations.get(_registration_id(issuer, redirect_uri))

    def register(self, issuer: str, redirect_uri: str, client: ClientIdentity) -> None:
        self._change(
            lambda contents: contents.registrations.__setitem__(_registration_id(issuer, redirect_uri), client)
        )

    def renew(self) -> None:
        sealed = self._sealed()
        if sealed is not None and self._sealer.is_outdated(PURPOSE, sealed):
            self._change(lambda contents: None)

    @property
    def version(self) -> object:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

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

    def _change(self, change: Callable[[_Contents], object]) -> None:
        with self._locked():
            contents = self._read()
            change(contents)
            self._write(self._sealer.seal(PURPOSE, msgspec.json.encode(contents)))

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
