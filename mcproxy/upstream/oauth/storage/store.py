"""Stores grants and registrations: in one encrypted file that several processes may share, or in memory.

A grant is on the disk when `save` returns, since a redeemed refresh token is of no more use at its server (requirement
R65). For the same reason space on the disk is reserved for the next write, so that a full disk costs no refreshed
grant; one that cannot be written even so serves from memory until it can be. Files are read and written in threads.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol, TypeVar

import anyio.to_thread
import msgspec
import structlog

from mcproxy.concurrency.clock import Clock
from mcproxy.sealing import Unsealable
from mcproxy.upstream.oauth.grants import Grant, GrantKey
from mcproxy.upstream.oauth.registration import ClientIdentity

PURPOSE: Final = "oauth grants"

FIRST_RETRY: Final = 5.0
LONGEST_RETRY: Final = 300.0
"""Seconds until a failed write is repeated: from FIRST_RETRY, each failure doubles the time, up to this."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

T = TypeVar("T")

log = structlog.get_logger()


class StoreFailed(Exception):
    """The store cannot be read or written. The text says why, and what to do."""


class GrantStore(Protocol):
    """Each method may raise StoreFailed."""

    async def load(self, key: GrantKey) -> Grant | None:
        """The grant of a principal at an upstream; None where there is none."""

    async def save(self, grant: Grant) -> None:
        """Stores a login's grant, in place of any other of its key."""

    async def update(self, grant: Grant) -> Grant:
        """Stores a grant with its next token; returns the grant that is stored.

        One that another login replaced stays replaced. One that was taken back stays so: it is returned, not stored.
        """

    async def delete(self, key: GrantKey) -> None:
        """Removes a grant, if there is one."""

    async def all(self) -> list[Grant]:
        """Every grant, in no particular order."""

    async def registration(self, issuer: str, redirect_uri: str) -> ClientIdentity | None:
        """The stored registration at that issuer, if any."""

    async def register(self, issuer: str, redirect_uri: str, client: ClientIdentity) -> None:
        """Stores the registration at that issuer, in place of an earlier one."""

    async def renew(self) -> None:
        """Seals everything with the first secret, so that the secret it was sealed with can be removed."""

    def version(self, key: GrantKey) -> object:
        """A value that differs after each change of a grant by any process; cheap, and never fails."""


class _Contents(msgspec.Struct):
    grants: dict[str, Grant] = {}
    """Grants as JSON, by their keys."""
    registrations: dict[str, ClientIdentity] = {}

    def update(self, grant: Grant) -> Grant:
        """As `GrantStore.update`."""
        id = _grant_id(grant.key)
        present = self.grants.get(id)
        if present is not None and present.id != grant.id:
            return present
        if present is not None or not grant.id:
            self.grants[id] = grant
        return grant


class MemoryStore:
    """A `GrantStore` that ends with its process: for tests, and for grants that may not be kept."""

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
        """As `delete`, for callers that cannot await."""
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

    def seal(self, purpose: str, payload: bytes) -> str:
        """A token that `open` accepts for the same purpose."""

    def open(self, purpose: str, token: str) -> bytes:
        """Raises Unsealable."""

    def is_outdated(self, purpose: str, token: str) -> bool:
        """Whether the token opens, and should be sealed anew."""


class FileStore:
    """A `GrantStore` in a file with mode 0600, sealed under the gateway's key."""

    def __init__(self, path: Path, sealer: Seals, clock: Clock = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._held: dict[str, Grant] = {}
        """By id: grants that could not be written, and whose refresh tokens exist nowhere else."""
        self._holdings = 0
        """The number of changes of `_held`."""
        self._retry = FIRST_RETRY
        self._retry_at = 0.0
        self._sealer = sealer
        self._reading = threading.Lock()
        self._latest: tuple[object, _Contents] = (None, _Contents())
        """The content that was read last, and the version of the file before that."""

    async def load(self, key: GrantKey) -> Grant | None:
        if self._is_retry_due:
            await self._write_held()
        held = self._held.get(_grant_id(key))
        try:
            present = (await self._contents()).grants.get(_grant_id(key))
        except StoreFailed:
            if held is None:
                raise
            return held
        return held if held is not None and _stands(held, present) else present

    async def save(self, grant: Grant) -> None:
        await self._change(lambda contents: contents.grants.__setitem__(_grant_id(grant.key), grant))

    async def update(self, grant: Grant) -> Grant:
        try:
            return await self._change(lambda contents: contents.update(grant))
        except StoreFailed as error:
            self._hold(grant, error)
            return grant

    async def delete(self, key: GrantKey) -> None:
        await self._change(lambda contents: contents.grants.pop(_grant_id(key), None))

    async def all(self) -> list[Grant]:
        return list(_merged((await self._contents()).grants, self._held).values())

    async def registration(self, issuer: str, redirect_uri: str) -> ClientIdentity | None:
        return (await self._contents()).registrations.get(_registration_id(issuer, redirect_uri))

    async def register(self, issuer: str, redirect_uri: str, client: ClientIdentity) -> None:
        id = _registration_id(issuer, redirect_uri)
        await self._change(lambda contents: contents.registrations.__setitem__(id, client))

    async def renew(self) -> None:
        self._release(await anyio.to_thread.run_sync(self._renew))

    def version(self, key: GrantKey) -> object:
        # The grant's user asks again when a retry is due.
        return self._version, self._holdings, self._is_retry_due

    @property
    def _is_retry_due(self) -> bool:
        return bool(self._held) and self._clock() >= self._retry_at

    def _hold(self, grant: Grant, error: StoreFailed) -> None:
        log.error(
            "a refreshed grant could not be written, and is kept in memory until it can be: "
            "make room on the disk, or make the file writable",
            upstream=grant.upstream,
            why=str(error),
        )
        if not self._held:
            self._retry = FIRST_RETRY
        self._held[_grant_id(grant.key)] = grant
        self._holdings += 1
        self._retry_at = self._clock() + self._retry

    async def _write_held(self) -> None:
        self._retry = min(2 * self._retry, LONGEST_RETRY)
        self._retry_at = self._clock() + self._retry
        try:
            await self._change(lambda contents: None)
        except StoreFailed:
            return

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
        result, written = await anyio.to_thread.run_sync(self._changed, change)
        self._release(written)
        return result

    def _read_once(self) -> _Contents:
        """The file's content, opened once for all grants, and again after each change of the file."""
        with self._reading:
            # Taken before reading: a file that is replaced in between is read again next time.
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

    def _renew(self) -> Mapping[str, Grant]:
        sealed = self._sealed()
        if sealed is None or not self._sealer.is_outdated(PURPOSE, sealed):
            return {}
        return self._changed(lambda contents: None)[1]

    def _changed(self, change: Callable[[_Contents], T]) -> tuple[T, Mapping[str, Grant]]:
        """The result of the change, and the held grants that no longer count. Runs in a thread."""
        with self._locked():
            contents, held = self._read(), dict(self._held)
            contents.grants = _merged(contents.grants, held)
            result = change(contents)
            self._write(self._sealer.seal(PURPOSE, msgspec.json.encode(contents)))
        return result, held

    def _release(self, written: Mapping[str, Grant]) -> None:
        """Drops held grants that were written or no longer count.

        Not in a thread: a grant that is held meanwhile stays.
        """
        if written:
            log.info("grants that could not be written before are written", upstreams=_upstreams(written))
            self._held = {id: grant for id, grant in self._held.items() if written.get(id) is not grant}
            self._holdings += 1

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Excludes all other processes that use the file, by a lock on a file beside it."""
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
        """Writes the file atomically, and to the disk; where that is full, into space that was reserved before."""
        data = sealed.encode()
        try:
            try:
                self._replace(self._path, data)
            except OSError as error:
                if error.errno not in _FULL or not self._fill_spare(data):
                    raise
            self._reserve(2 * len(data))
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StoreFailed(f"cannot write {self._path}: {error}") from error

    def _replace(self, path: Path, data: bytes) -> None:
        """Puts a new file at `path`. Raises OSError."""
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except OSError:
                Path(file.name).unlink(missing_ok=True)
                raise

    @property
    def _spare(self) -> Path:
        """A file whose space on the disk takes the next content if there is no other left."""
        return self._path.with_suffix(".spare")

    def _reserve(self, size: int) -> None:
        try:
            present = self._spare.stat().st_size
        except OSError:
            present = 0
        if present < size:
            with suppress(OSError):  # what was to be written is written
                self._replace(self._spare, bytes(size))

    def _fill_spare(self, data: bytes) -> bool:
        """Writes into the spare file, and puts that in place; returns whether it has room. Raises OSError."""
        try:
            file = self._spare.open("r+b")
        except FileNotFoundError:
            return False
        with file:
            if os.fstat(file.fileno()).st_size < len(data):
                return False
            file.write(data)
            file.truncate()
            os.fsync(file.fileno())
        self._spare.replace(self._path)
        return True


def _stands(held: Grant, present: Grant | None) -> bool:
    """Whether a grant that could not be written still counts beside the file's content."""
    if present is None:
        return not held.id  # a revoked login stays revoked
    return present.id == held.id and present.generation < held.generation


def _merged(grants: Mapping[str, Grant], held: Mapping[str, Grant]) -> dict[str, Grant]:
    return {**grants, **{id: grant for id, grant in held.items() if _stands(grant, grants.get(id))}}


def _upstreams(grants: Mapping[str, Grant]) -> list[str]:
    return sorted({grant.upstream for grant in grants.values()})


def _grant_id(key: GrantKey) -> str:
    """The key as one text, unambiguous for any names."""
    return msgspec.json.encode(key).decode()


def _registration_id(issuer: str, redirect_uri: str) -> str:
    return f"{issuer} {redirect_uri}"
