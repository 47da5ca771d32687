"""The envelope: one request of a client, sealed by the replica that authenticated it for the replica that answers it.

It names its receiver, its expiry and the sender, and is bound to the body beside it. The receiver accepts each envelope
once: it remembers the nonce for as long as that is valid. It holds secrets, so it is encrypted.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import msgspec

from mcproxy.call.identity import ForwardedCredentials, InboundToken, Principal
from mcproxy.sealing import Sealer, Unsealable

ALIVE: Final = "*"
"""The target of an envelope that asks whether its receiver lives (RFC 9110, section 9.3.7), and nothing else."""
LIFETIME: Final = 10.0
"""Seconds for which an envelope is valid: replicas' clocks may not differ by more."""

_PURPOSE: Final = "cluster envelope"


class HopEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """A request of a known sender, by `name`; or one of a replica itself, without a sender."""

    method: str
    target: str
    fields: list[tuple[str, str]]
    """The header fields, without those of the connection and those that identify the sender."""
    name: str = ""
    roles: list[str] = []
    scopes: list[str] = []
    attributes: list[tuple[str, str]] = []
    credentials: tuple[str, Mapping[str, str]] | None = None
    """Key and headers of the sender's `ForwardedCredentials`."""
    placed: str = ""
    """The upstream with `placement: one` that a replica itself asks, with no client's request; else empty."""
    address: str = ""
    """The address of a sender without authentication."""
    inbound_token: str | None = None
    """The token by which the sender authenticated, if upstreams exchange such tokens."""
    authority: str = ""
    """As `InboundToken.authority`."""
    token_expires: float = 0.0

    @classmethod
    def of(
        cls,
        method: str,
        target: str,
        fields: list[tuple[str, str]],
        sender: Principal,
        credentials: ForwardedCredentials | None,
    ) -> HopEnvelope:
        """A request of `sender`, who brought `credentials` for upstreams."""
        token = None if credentials is None else credentials.inbound_token
        return cls(
            method,
            target,
            fields,
            name=sender.name,
            roles=sorted(sender.roles),
            scopes=sorted(sender.scopes),
            attributes=list(sender.attributes),
            credentials=None if credentials is None else (credentials.key, credentials.headers),
            address=sender.address,
            inbound_token=None if token is None else token.value,
            authority="" if token is None else token.authority,
            token_expires=0.0 if token is None else token.expires,
        )

    @classmethod
    def alive(cls, placed: str = "") -> HopEnvelope:
        """Asks whether its receiver lives; or whether an upstream runs there, where one is named."""
        return cls("OPTIONS", ALIVE, [], placed=placed)

    @property
    def principal(self) -> Principal:
        """The sender, as the replica that let it in identified it."""
        attributes = tuple((name, value) for name, value in self.attributes)
        return Principal(self.name, frozenset(self.roles), frozenset(self.scopes), attributes, self.address)

    @property
    def forwarded(self) -> ForwardedCredentials | None:
        """The sender's credentials for upstreams, if settings forward any."""
        if self.credentials is None:
            return None
        token = None
        if self.inbound_token is not None and self.authority:
            token = InboundToken(self.authority, self.token_expires, self.inbound_token)
        return ForwardedCredentials(*self.credentials, token)


class _Sealed(msgspec.Struct, frozen=True, array_like=True):
    receiver: str
    expires: float
    nonce: str
    body: bytes
    """A digest of the body."""
    envelope: HopEnvelope


def _fault(sentence: str) -> str:
    """A sentence that stands among the errors (docs/reference/errors.md)."""
    return sentence


class EnvelopeFault(Enum):
    """Why an envelope is refused, as told to its sender and to the operators of both replicas."""

    SECRET = _fault("it was sealed with no secret that the receiver has (proxy.secret)")
    VERSION = _fault("it is of another version of mcproxy")
    RECEIVER = _fault("it is for another replica, or for the receiver before it was restarted (cluster.advertise)")
    CLOCK = _fault("it has expired, or the clocks of the replicas differ by more than ten seconds")
    BODY = _fault("it was sealed for another body")
    REPLAY = _fault("it was received before")
    UNTOLD = _fault("it does not say why")
    """A receiver of another version gave no reason."""


class RefusedEnvelope(Exception):
    """The text is that of the fault."""

    def __init__(self, fault: EnvelopeFault) -> None:
        super().__init__(fault.value)
        self.fault: Final = fault


_decoder = msgspec.json.Decoder(_Sealed)
_encoder = msgspec.json.Encoder()


class Envelopes:
    """Seals and opens envelopes. `wall` is a Unix time in seconds."""

    def __init__(self, sealer: Sealer, wall: Callable[[], float] = time.time) -> None:
        self._sealer = sealer
        self._wall = wall
        self._taken: dict[float, set[str]] = {}
        """The nonces of envelopes that may still be valid, by the period of LIFETIME in which they expire."""

    def seal(self, envelope: HopEnvelope, receiver: str, body: bytes) -> bytes:
        """An envelope that the replica called `receiver` opens once, beside this `body`, for `LIFETIME` seconds."""
        sealed = _Sealed(receiver, self._wall() + LIFETIME, secrets.token_hex(12), _digest(body), envelope)
        return self._sealer.seal(_PURPOSE, _encoder.encode(sealed)).encode()

    def open(self, token: bytes, body: bytes) -> HopEnvelope:
        """The envelope that came with `body`, once. Raises RefusedEnvelope."""
        try:
            sealed = _decoder.decode(self._sealer.open(_PURPOSE, token.decode()))
        except (Unsealable, UnicodeDecodeError) as error:
            raise RefusedEnvelope(EnvelopeFault.SECRET) from error
        except msgspec.MsgspecError as error:
            raise RefusedEnvelope(EnvelopeFault.VERSION) from error
        now = self._wall()
        if sealed.receiver != self._sealer.label:
            raise RefusedEnvelope(EnvelopeFault.RECEIVER)
        if not now <= sealed.expires <= now + 2 * LIFETIME:
            raise RefusedEnvelope(EnvelopeFault.CLOCK)
        if sealed.body != _digest(body):
            raise RefusedEnvelope(EnvelopeFault.BODY)
        self._take(sealed.nonce, sealed.expires, now)
        return sealed.envelope

    def _take(self, nonce: str, expires: float, now: float) -> None:
        period = expires // LIFETIME
        if period not in self._taken:
            # By the time at which they expire: a clock that is set back has none forgotten, and no more of them kept.
            self._taken = {each: nonces for each, nonces in self._taken.items() if (each + 1) * LIFETIME > now}
            self._taken[period] = set()
        if nonce in self._taken[period]:
            raise RefusedEnvelope(EnvelopeFault.REPLAY)
        self._taken[period].add(nonce)


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
