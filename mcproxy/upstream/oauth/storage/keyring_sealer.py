"""Seals stored grants under a key that the system's keyring keeps (Keychain, Secret Service, Credential Manager).

The grants stay in the file, since keyrings hold short texts. The keyring is read whenever something is sealed or
opened, in the thread that does so, since it may prompt its user.
"""

from __future__ import annotations

import secrets
from typing import Final, Protocol

from mcproxy.sealing import Sealer, Unsealable
from mcproxy.upstream.oauth.storage.store import StoreFailed

SERVICE: Final = "mcproxy"
ENTRY: Final = "grants"


class Keyring(Protocol):
    """The two functions of the library `keyring` that the gateway uses."""

    def get_password(self, service_name: str, username: str) -> str | None: ...

    def set_password(self, service_name: str, username: str, password: str) -> None: ...


class KeyringSealer:
    """Implements `store.Seals`. `former` opens what was sealed before the keyring was chosen.

    `failures` are the library's exceptions.
    """

    def __init__(self, keyring: Keyring, former: Sealer, failures: tuple[type[Exception], ...]) -> None:
        self._keyring = keyring
        self._failures: tuple[type[Exception], ...] = (*failures, OSError)
        self._former = former
        self._sealer: Sealer | None = None

    def seal(self, purpose: str, payload: bytes) -> str:
        """Seals; makes the key if there is none. Raises StoreFailed."""
        sealer = self._known() or self._made()
        return sealer.seal(purpose, payload)

    def open(self, purpose: str, token: str) -> bytes:
        """Opens. Raises Unsealable, and StoreFailed if the keyring does not answer."""
        sealer = self._known()
        if sealer is not None:
            try:
                return sealer.open(purpose, token)
            except Unsealable:
                pass
        return self._former.open(purpose, token)

    def is_outdated(self, purpose: str, token: str) -> bool:
        """True for a token that the former secret opens and the keyring's key does not."""
        sealer = self._known()
        try:
            if sealer is not None:
                sealer.open(purpose, token)
                return False
        except Unsealable:
            pass
        try:
            self._former.open(purpose, token)
        except Unsealable:
            return False
        return True

    def _known(self) -> Sealer | None:
        """A sealer with the keyring's key; None if the keyring holds none."""
        if self._sealer is None:
            key = self._asked()
            self._sealer = None if key is None else Sealer(key.encode())
        return self._sealer

    def _made(self) -> Sealer:
        try:
            self._keyring.set_password(SERVICE, ENTRY, secrets.token_urlsafe(32))
        except self._failures as error:
            raise _unusable(error) from error
        made = self._known()
        if made is None:
            raise StoreFailed("the system's keyring does not keep what is stored in it: choose another backend")
        return made

    def _asked(self) -> str | None:
        try:
            return self._keyring.get_password(SERVICE, ENTRY)
        except self._failures as error:
            raise _unusable(error) from error


def _unusable(error: Exception) -> StoreFailed:
    why = " ".join(str(error).split())[:200] or type(error).__name__
    return StoreFailed(f"the system's keyring cannot be used ({why}): unlock it, or set proxy.grant_key to secret")
