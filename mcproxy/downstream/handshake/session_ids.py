"""Session ids that hold their session's handshake, signed, so that a restarted gateway can open it again (R56).

An id is bound to its principal and endpoint; from other callers it is refused like an invented one (R39). It says
nothing that its client did not say itself. Stores nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.call.identity import Principal
from mcproxy.protocol.jsonrpc import InvalidMessage, Params, json_of, parse_object, parse_text, raw
from mcproxy.sealing import Sealer, Unsealable

MAX_LENGTH: Final = 2048
"""Characters of an id: servers and proxies on the way limit headers, some to 4 KiB or so."""

MAX_KEPT: Final = 16 * 1024
"""Bytes of a client's capabilities and `clientInfo` that are kept with its session, however many it sends."""

KEY_BYTES: Final = 16

_BRIDGED_CAPABILITIES: Final = {
    "sampling": ("context", "tools"),
    "elicitation": ("form", "url"),
    "roots": ("listChanged",),
}
"""The client capabilities that the gateway uses, with their members: kept if not all of them fit."""

_BRIEF: Final = 100
"""Characters of a name or version in a shortened `clientInfo`."""


class UnknownSession(Exception):
    """No session has this id, and none can be opened with it. Another principal's session looks the same."""


class Handshake(msgspec.Struct, frozen=True):
    """The result of `initialize`: the negotiated protocol version, the client's capabilities and its `clientInfo`."""

    version: str
    capabilities: Params = msgspec.field(default_factory=dict)
    info: Raw | None = None


class SessionIdPayload(msgspec.Struct, frozen=True):
    """The content of an id. `issued` is a Unix time in seconds; `key` is the session's key, in hex."""

    key: str
    issued: int
    handshake: Handshake


class _SignedSession(msgspec.Struct, array_like=True):
    version: str
    issued: int
    capabilities: Params
    info: Raw


def bounded(handshake: Handshake) -> Handshake:
    """`handshake` cut to MAX_KEPT bytes, and copied out of the message that it came in."""
    for brief in _shortened(handshake):
        if _size(brief) <= MAX_KEPT:
            break
    capabilities = {key: value.copy() for key, value in brief.capabilities.items()}
    return Handshake(brief.version, capabilities, None if brief.info is None else brief.info.copy())


def sign(sealer: Sealer, principal: Principal, endpoint: str, payload: SessionIdPayload) -> str:
    """The id of a session, of visible ASCII. Capabilities and info that do not fit MAX_LENGTH are left out."""
    key = bytes.fromhex(payload.key)
    for handshake in _shortened(payload.handshake):
        signed = _SignedSession(
            handshake.version, payload.issued, handshake.capabilities, handshake.info or Raw(b"null")
        )
        id = sealer.sign_here(_purpose(principal, endpoint), key + zlib.compress(msgspec.json.encode(signed)))
        if len(id) <= MAX_LENGTH:
            break
    return id


def verify(sealer: Sealer, principal: Principal, endpoint: str, id: str) -> SessionIdPayload:
    """Raises UnknownSession where `id` was not signed for this principal and endpoint."""
    try:
        opened = sealer.open_signed(_purpose(principal, endpoint), id)
    except Unsealable as error:
        raise UnknownSession from error
    signed = msgspec.json.decode(zlib.decompress(opened[KEY_BYTES:]), type=_SignedSession)
    info = None if bytes(signed.info) == b"null" else signed.info
    handshake = Handshake(signed.version, signed.capabilities, info)
    return SessionIdPayload(opened[:KEY_BYTES].hex(), signed.issued, handshake)


def _purpose(principal: Principal, endpoint: str) -> str:
    return json_of(["session", principal.name, endpoint]).decode()


def _size(handshake: Handshake) -> int:
    return sum(len(key) + len(value) for key, value in handshake.capabilities.items()) + len(handshake.info or b"")


def _shortened(handshake: Handshake) -> Iterator[Handshake]:
    """`handshake` whole, then with a short `clientInfo`, then with bridged capabilities alone."""
    yield handshake
    name = _brief_info(handshake.info)
    yield Handshake(handshake.version, handshake.capabilities, name)
    yield Handshake(handshake.version, _bridged(handshake.capabilities), name)


def _brief_info(info: Raw | None) -> Raw | None:
    members = _members(info)
    texts = {key: parse_text(members[key]) for key in ("name", "version") if key in members}
    brief = {key: text[:_BRIEF] for key, text in texts.items() if text is not None}
    return raw(brief) if brief else None


def _bridged(capabilities: Params) -> Params:
    bridged: Params = {}
    for name, members in _BRIDGED_CAPABILITIES.items():
        if name in capabilities:
            declared = _members(capabilities[name])
            bridged[name] = raw({member: _flag(declared[member]) for member in members if member in declared})
    return bridged


def _flag(value: Raw) -> object:
    return True if bytes(value) == b"true" else {}


def _members(value: Raw | None) -> Params:
    try:
        return parse_object(value) if value is not None else {}
    except InvalidMessage:
        return {}
