"""Seal state that a client carries for the gateway: encrypted, authenticated, bound to a purpose. Stores nothing."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12

Digest = Callable[[str, bytes], str]
"""A text for a purpose and a payload that only the holder of the gateway's key can make; not reversible."""


class Unsealable(Exception):
    """Not sealed under this key for this purpose: made up, tampered with, or of another gateway."""


class Sealer:
    """AES-256-GCM under a key derived from `secret`. Tokens are URL-safe text, fit for headers."""

    def __init__(self, secret: bytes, randomness: Callable[[int], bytes] = os.urandom) -> None:
        self._cipher = AESGCM(hashlib.sha256(b"mcproxy seal v1\0" + secret).digest())
        self._randomness = randomness
        self._naming = hashlib.sha256(b"mcproxy name v1\0" + secret).digest()
        self._begun: dict[str, hashlib.blake2b] = {}
        """Digests of what comes before the payload, by purpose: those are few."""

    def seal(self, purpose: str, payload: bytes) -> str:
        return self._sealed(purpose, payload, self._randomness(_NONCE))

    def name(self, purpose: str, payload: bytes) -> str:
        """As `seal`, and the same text for the same payload: an id that its holders compare. `open` opens it."""
        # A nonce may follow from what it encrypts, as in RFC 5297: it comes again for nothing else.
        message = json.dumps([purpose, payload.hex()]).encode()
        return self._sealed(purpose, payload, hmac.digest(self._naming, message, "sha256")[:_NONCE])

    def digest(self, purpose: str, payload: bytes) -> str:
        """A keyed digest: the same text for the same payload; without the key it can be neither made nor guessed at."""
        begun = self._begun.get(purpose)
        if begun is None:
            # BLAKE2b takes a key itself (RFC 7693, section 2.9), and a short payload costs it a quarter of an HMAC.
            begun = hashlib.blake2b(purpose.encode() + b"\0", digest_size=16, key=self._naming)
            self._begun[purpose] = begun
        digest = begun.copy()
        digest.update(payload)
        return digest.hexdigest()

    def _sealed(self, purpose: str, payload: bytes, nonce: bytes) -> str:
        sealed = nonce + self._cipher.encrypt(nonce, payload, purpose.encode())
        return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def open(self, purpose: str, token: str) -> bytes:
        """The payload that was sealed for the same purpose. Raises Unsealable."""
        try:
            sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], purpose.encode())
        except (binascii.Error, ValueError, InvalidTag) as error:
            raise Unsealable("not sealed by this gateway") from error
