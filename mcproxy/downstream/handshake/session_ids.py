"""Session ids: what a session was opened with, sealed, so that a restarted gateway still knows it (R56).

An id is bound to its principal and endpoint: to anybody else it is as good as made up (R39). Stores nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.call.identity import Principal
from mcproxy.protocol.jsonrpc import InvalidMessage, Params, parse_object, parse_text, raw
from mcproxy.sealing import Sealer, Unsealable

MAX_LENGTH: Final = 2048
"""Characters. Servers and proxies on the way limit headers, some to 4 KiB or so."""

MAX_KEPT: Final = 16 * 1024
"""Bytes of what a client says of itself that are kept with its session, however many it sends."""

KEY_BYTES: Final = 16

_INTERESTING: Final = {
    "sampling": ("context", "tools"),
    "elicitation": ("form", "url"),
    "roots": ("listChanged",),
}
"""The client capabilities that the gateway acts on, with their members: what is kept if not all fits."""

_BRIEF: Final = 100


class UnknownSession(Exception):
    """An id that is no live session's, nor can become one. Says nothing of why: others' sessions look so, too."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a client said of itself in `initialize`, with the version that was agreed upon."""

    version: str
    capabilities: Params = field(default_factory=dict)
    info: Raw | None = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """What an id holds. `issued` is a Unix time in seconds; `key` is the session's own and secret."""

    key: str
    issued: int
    opening: Opening


class _SealedSession(msgspec.Struct, array_like=True):
    version: str
    issued: int
    capabilities: Params
    info: Raw


def kept(opening: Opening) -> Opening:
    """What a session may hold of `opening`: no more than MAX_KEPT, and nothing of the message that it came in."""
    for brief in _ever_briefer(opening):
        if _size(brief) <= MAX_KEPT:
            break
    capabilities = {key: value.copy() for key, value in brief.capabilities.items()}
    return Opening(brief.version, capabilities, None if brief.info is None else brief.info.copy())


def seal(sealer: Sealer, principal: Principal, endpoint: str, remembered: Remembered) -> str:
    """The id of a session, of visible ASCII. What is too bulky for MAX_LENGTH is left out."""
    key = bytes.fromhex(remembered.key)
    for opening in _ever_briefer(remembered.opening):
        sealed = _SealedSession(opening.version, remembered.issued, opening.capabilities, opening.info or Raw(b"null"))
        id = sealer.seal(_purpose(principal, endpoint), key + zlib.compress(msgspec.json.encode(sealed)))
        if len(id) <= MAX_LENGTH:
            break
    return id


def unseal(sealer: Sealer, principal: Principal, endpoint: str, id: str) -> Remembered:
    """Raises UnknownSession where `id` was not sealed for this principal and endpoint."""
    try:
        payload = sealer.open(_purpose(principal, endpoint), id)
    except Unsealable as error:
        raise UnknownSession from error
    sealed = msgspec.json.decode(zlib.decompress(payload[KEY_BYTES:]), type=_SealedSession)
    info = None if bytes(sealed.info) == b"null" else sealed.info
    opening = Opening(sealed.version, sealed.capabilities, info)
    return Remembered(payload[:KEY_BYTES].hex(), sealed.issued, opening)


def _purpose(principal: Principal, endpoint: str) -> str:
    return bytes(raw(["session", principal.name, endpoint])).decode()


def _size(opening: Opening) -> int:
    return sum(len(key) + len(value) for key, value in opening.capabilities.items()) + len(opening.info or b"")


def _ever_briefer(opening: Opening) -> Iterator[Opening]:
    yield opening
    name = _brief_info(opening.info)
    yield Opening(opening.version, opening.capabilities, name)
    yield Opening(opening.version, _interesting(opening.capabilities), name)


def _brief_info(info: Raw | None) -> Raw | None:
    members = _members(info)
    texts = {key: parse_text(members[key]) for key in ("name", "version") if key in members}
    brief = {key: text[:_BRIEF] for key, text in texts.items() if text is not None}
    return raw(brief) if brief else None


def _interesting(capabilities: Params) -> Params:
    kept: Params = {}
    for name, members in _INTERESTING.items():
        if name in capabilities:
            declared = _members(capabilities[name])
            kept[name] = raw({member: _flag(declared[member]) for member in members if member in declared})
    return kept


def _flag(value: Raw) -> object:
    return True if bytes(value) == b"true" else {}


def _members(value: Raw | None) -> Params:
    try:
        return parse_object(value) if value is not None else {}
    except InvalidMessage:
        return {}
