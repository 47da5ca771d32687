"""The state folder: makes and opens the files of the sealing key, of grants, and of sessions that subscribed."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import structlog

from mcproxy.downstream.handshake.subscriber_journal import SubscriberJournal
from mcproxy.sealing import Sealer
from mcproxy.settings import Settings
from mcproxy.upstream.oauth.storage.keyring_sealer import KeyringSealer
from mcproxy.upstream.oauth.storage.store import FileStore, GrantStore, MemoryStore, Seals

log = structlog.get_logger()


def state_folder() -> Path:
    """The folder of this user's state (XDG Base Directory). Raises RuntimeError if there is no home."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "mcproxy"


def features_folder() -> Path | None:
    """The folder of what features keep between runs; None if there is no home."""
    try:
        return state_folder()
    except RuntimeError:
        return None


def secret_keys(settings: Settings) -> tuple[bytes, ...]:
    """The keys that state is sealed under, the first, and opened with, all of them (R56).

    Those that are configured, else one that is kept between runs.
    """
    if settings.proxy.secret:
        return tuple(secret.encode() for secret in settings.proxy.secret)
    fresh = secrets.token_bytes(32)
    try:
        return (_kept(state_folder() / "secret", fresh),)
    except (OSError, RuntimeError) as error:
        log.warning("what clients carry for us will not survive a restart", why=str(error), remedy="set proxy.secret")
        return (fresh,)


def _kept(path: Path, fresh: bytes) -> bytes:
    """The content of `path`; if it does not exist, `fresh`, in a file for this user alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=path.parent) as file:
        file.write(fresh)
        file.flush()
        with suppress(FileExistsError):
            os.link(file.name, path)  # atomically, as another process may start at this moment
    kept = path.read_bytes()
    if len(kept) < len(fresh):
        raise OSError(f"{path} is too short for a key: remove it")
    return kept


def grant_store(settings: Settings, sealer: Sealer) -> GrantStore:
    """The store of OAuth grants: a file of this user's, if there can be one."""
    try:
        return FileStore(state_folder() / "grants", _seals(settings, sealer))
    except RuntimeError as error:
        if any(spec.oauth is not None for spec in settings.upstreams):
            log.warning("logins will not survive a restart", why=str(error), remedy="set XDG_STATE_HOME")
        return MemoryStore()


def _seals(settings: Settings, sealer: Sealer) -> Seals:
    if settings.proxy.grant_key == "secret":
        return sealer
    import keyring  # an extra; the settings are valid where it is installed
    import keyring.errors

    return KeyringSealer(keyring, sealer, (keyring.errors.KeyringError,))


def subscriber_journal(settings: Settings, sealer: Sealer) -> SubscriberJournal:
    """The record of sessions that subscribed to resources, in this run and earlier ones."""
    try:
        path = state_folder() / "subscribers"
    except RuntimeError:
        path = None
    journal = SubscriberJournal(path, lambda key: sealer.digests("subscriber", key.encode()))
    now = time.time()
    journal.load(now - settings.proxy.limits.session_lifetime, now)
    return journal
