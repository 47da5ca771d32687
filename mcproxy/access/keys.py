"""Make API keys, and find the holder of one by its SHA-256 digest.

A key is 256 random bits, so a plain SHA-256 of it cannot be reversed, and the time of a look-up by hash reveals nothing
about other keys. Reads no header.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from mcproxy.call.identity import Principal
from mcproxy.settings.access.authentication import ApiKeySettings

MARK: Final = "mcproxy_"
"""The prefix of keys, by which secret scanners recognise them: `mcproxy_[A-Za-z0-9_-]{43}`."""

_BYTES: Final = 32


class Holder(msgspec.Struct, frozen=True):
    """The principal of a key. `expires` is a Unix time in seconds; infinite for never."""

    principal: Principal
    expires: float


def make() -> str:
    """A new key: a prefix by which secret scanners recognise it, and random text."""
    return MARK + secrets.token_urlsafe(_BYTES)


def key_digest(key: str) -> bytes:
    """The SHA-256 of a key, 32 bytes: the only form of it in the configuration."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


class KeyRing:
    """All configured keys, by digest: a look-up costs the same however many there are."""

    def __init__(self, keys: Mapping[str, Sequence[ApiKeySettings]]) -> None:
        self._holders = {bytes.fromhex(key.sha256): _holder(name, key) for name, own in keys.items() for key in own}

    def find(self, hashed: bytes) -> Holder | None:
        """The holder of the key with that SHA-256, even of an expired one; None if unknown."""
        return self._holders.get(hashed)


def _holder(name: str, key: ApiKeySettings) -> Holder:
    principal = Principal(name, roles=frozenset(key.roles), attributes=(("key", key.sha256[:12]),))
    return Holder(principal, math.inf if key.expires is None else key.expires.timestamp())
