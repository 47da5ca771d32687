"""Logins in progress in the store that replicas share, so that the redirect of one may reach any replica.

Each is sealed, expires by itself, and is taken once. The caller chooses what is kept with a login.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from mcproxy.cluster.oauth.grants import away
from mcproxy.cluster.store.protocol import Store, StoreUnavailable
from mcproxy.sealing import Sealer, Unsealable
from mcproxy.upstream.oauth.under_way import crowded_out

_PURPOSE: Final = "oauth login"


class _Login(msgspec.Struct, frozen=True, array_like=True):
    state: str
    session: str
    step: bytes


class SharedLogins:
    """Implements `login.visits.LoginsUnderWay`."""

    def __init__(self, store: Store, sealer: Sealer) -> None:
        self._store = store
        self._sealer = sealer
        self._begun: dict[str, str] = {}
        """The principals of logins that were begun here, oldest first, by the names of their entries."""

    async def add(self, state: str, session: str, principal: str, step: bytes, life: float) -> None:
        """Raises StoreFailed, before the visitor was sent to an authorization server."""
        sealed = self._sealer.seal(_PURPOSE, msgspec.json.encode(_Login(state, session, step))).encode()
        name = _name(state)
        crowded = crowded_out(self._begun)
        # Before the store is asked: logins that begin meanwhile find the room that is left.
        if crowded is not None:
            del self._begun[crowded]
        self._begun[name] = principal
        try:
            if crowded is not None:
                await self._store.remove(crowded)
            await self._store.put(name, sealed, life)
        except StoreUnavailable as error:
            self._begun.pop(name, None)
            raise away() from error

    async def take(self, state: str, session: str) -> bytes | None:
        """Raises StoreFailed."""
        try:
            sealed = await self._store.get(_name(state))
            login = None if sealed is None else self._opened(sealed)
            if login is None or (login.state, login.session) != (state, session):
                return None
            self._begun.pop(_name(state), None)
            # Of several with the same redirect, only one finds the entry.
            return login.step if await self._store.remove(_name(state), sealed) else None
        except StoreUnavailable as error:
            raise away() from error

    def _opened(self, sealed: bytes) -> _Login | None:
        try:
            return msgspec.json.decode(self._sealer.open(_PURPOSE, sealed.decode()), type=_Login)
        except (Unsealable, msgspec.MsgspecError, UnicodeDecodeError):
            return None


def _name(state: str) -> str:
    return "login:" + hashlib.sha256(state.encode()).hexdigest()[:40]
