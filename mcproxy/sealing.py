"""Seal or sign state that a client carries for the gateway: authenticated, bound to a purpose. Stores nothing.

What is sealed is encrypted as well; what its holder may read is signed, which needs no library. Both are made with the
first of several secrets and opened with any, so that a secret can be replaced while what was made with it is still in
use.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12
_SIGNATURE = 32
_SEPARATOR = "."
"""Between a label and a token, which is base64url."""

Digest = Callable[[str, bytes], str]
"""A text for a purpose and a payload that only the holder of the gateway's key can make; not reversible."""


def label_of(token: str) -> str:
    """The label that a token claims, which is a hint until the token is opened; empty where it has none."""
    return token.rpartition(_SEPARATOR)[0]


def _bound(purpose: str, label: str) -> str:
    """The purpose of a labelled token: what is authenticated beside its payload."""
    return f"{purpose}\0{label}" if label else purpose


class Unsealable(Exception):
    """Not made under this key for this purpose: made up, tampered with, or of another gateway."""


class Sealer:
    """AES-256-GCM, or HMAC-SHA-256, under keys derived from `secrets`. Tokens are URL-safe text, fit for headers.

    Names and digests are compared, not opened: they keep the secret that they began with until it is no longer listed.

    `label` names this process to others that share the secrets, if there are any: tokens of `seal_here`, `sign_here`,
    `name_here` and `labelled` begin with it, in clear. It is no secret; in all but the last it is authenticated.
    """

    def __init__(self, *secrets: bytes, randomness: Callable[[int], bytes] = os.urandom, label: str = "") -> None:
        assert _SEPARATOR not in label
        self.label: Final = label
        self._randomness = randomness
        self._keys = [_DerivedKeys(secret) for secret in secrets]
        self._naming = self._keys[0]

    def reconfigure(self, *secrets: bytes) -> None:
        """Seals with the first of these from now on, and opens with any of them."""
        known = {keys.secret: keys for keys in self._keys}
        self._keys = [known.get(secret) or _DerivedKeys(secret) for secret in secrets]
        if self._naming.secret not in secrets:
            self._naming = self._keys[0]

    def seal(self, purpose: str, payload: bytes) -> str:
        """A token of `payload`, another each time, which `open` opens for the same `purpose` alone."""
        return self._keys[0].sealed(purpose, payload, self._randomness(_NONCE))

    def seal_here(self, purpose: str, payload: bytes) -> str:
        """As `seal`, for what names something that lives in this process alone."""
        return self.labelled(self.seal(_bound(purpose, self.label), payload))

    def sign(self, purpose: str, payload: bytes) -> str:
        """A token of `payload`, which anyone can read, and `open_signed` opens for the same `purpose` alone."""
        return self._keys[0].signed(purpose, payload)

    def sign_here(self, purpose: str, payload: bytes) -> str:
        """As `sign`, for what names something that lives in this process alone."""
        return self.labelled(self.sign(_bound(purpose, self.label), payload))

    def name(self, purpose: str, payload: bytes) -> str:
        """As `seal`, and the same text for the same payload: an id that its holders compare. `open` opens it."""
        return self._naming.sealed(purpose, payload, self._naming.nonce(purpose, payload))

    def name_here(self, purpose: str, payload: bytes) -> str:
        """As `name`, for what lives in this process alone."""
        return self.labelled(self.name(_bound(purpose, self.label), payload))

    def labelled(self, token: str) -> str:
        """A token of another kind, in base64url or hex, that names something which lives in this process alone."""
        return f"{self.label}{_SEPARATOR}{token}" if self.label else token

    def digest(self, purpose: str, payload: bytes) -> str:
        """A keyed digest: the same text for the same payload; without the key it can be neither made nor guessed at."""
        return self._naming.digest(purpose, payload)

    def digests(self, purpose: str, payload: bytes) -> tuple[str, ...]:
        """The digests under all secrets: what was kept is found again, whichever secret it was made with."""
        return tuple(keys.digest(purpose, payload) for keys in self._keys)

    def open(self, purpose: str, token: str) -> bytes:
        """The payload that was sealed for the same purpose, under any label. Raises Unsealable."""
        return self._opened(purpose, token, _DerivedKeys.unsealed)[1]

    def open_signed(self, purpose: str, token: str) -> bytes:
        """The payload that was signed for the same purpose, under any label. Raises Unsealable."""
        return self._opened(purpose, token, _DerivedKeys.verified)[1]

    def is_outdated(self, purpose: str, token: str) -> bool:
        """Whether the token opens, and was sealed with another secret than the first."""
        try:
            return self._opened(purpose, token, _DerivedKeys.unsealed)[0] is not self._keys[0]
        except Unsealable:
            return False

    def _opened(self, purpose: str, token: str, opened: _Opened) -> tuple[_DerivedKeys, bytes]:
        label, _, token = token.rpartition(_SEPARATOR)
        purpose = _bound(purpose, label)
        try:
            content = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise Unsealable("not made by this gateway") from error
        for keys in self._keys:
            payload = opened(keys, purpose, content)
            if payload is not None:
                return keys, payload
        raise Unsealable("not made by this gateway")


class _DerivedKeys:
    """What is derived from one secret: the keys that encrypt, that sign, and that make names and digests."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._signing = hashlib.sha256(b"mcproxy sign v1\0" + secret).digest()
        self._naming = hashlib.sha256(b"mcproxy name v1\0" + secret).digest()
        self._begun: dict[str, hashlib.blake2b] = {}
        """Digests of what comes before the payload, by purpose: those are few."""

    @cached_property
    def _cipher(self) -> AESGCM:
        # It takes 7 MiB, which most gateways never need.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(hashlib.sha256(b"mcproxy seal v1\0" + self.secret).digest())

    def unsealed(self, purpose: str, sealed: bytes) -> bytes | None:
        """The payload; None where it was not sealed under this key for this purpose."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], purpose.encode())
        except (ValueError, InvalidTag):
            return None

    def sealed(self, purpose: str, payload: bytes, nonce: bytes) -> str:
        sealed = nonce + self._cipher.encrypt(nonce, payload, purpose.encode())
        return _text(sealed)

    def signed(self, purpose: str, payload: bytes) -> str:
        return _text(payload + _mac(self._signing, purpose, payload))

    def verified(self, purpose: str, signed: bytes) -> bytes | None:
        """The payload; None where it was not signed under this key for this purpose."""
        payload, signature = signed[:-_SIGNATURE], signed[-_SIGNATURE:]
        return payload if hmac.compare_digest(signature, _mac(self._signing, purpose, payload)) else None

    def nonce(self, purpose: str, payload: bytes) -> bytes:
        # A nonce may follow from what it encrypts, as in RFC 5297: it comes again for nothing else.
        return _mac(self._naming, purpose, payload)[:_NONCE]

    def digest(self, purpose: str, payload: bytes) -> str:
        begun = self._begun.get(purpose)
        if begun is None:
            # BLAKE2b takes a key itself (RFC 7693, section 2.9), and a short payload costs it a quarter of an HMAC.
            begun = hashlib.blake2b(purpose.encode() + b"\0", digest_size=16, key=self._naming)
            self._begun[purpose] = begun
        digest = begun.copy()
        digest.update(payload)
        return digest.hexdigest()


_Opened = Callable[[_DerivedKeys, str, bytes], bytes | None]
"""A method of the keys that opens a token for a purpose."""


def _mac(key: bytes, purpose: str, payload: bytes) -> bytes:
    return hmac.digest(key, json.dumps([purpose, payload.hex()]).encode(), "sha256")


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
