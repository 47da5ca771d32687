"""The caching hints of a result, `ttlMs` and `cacheScope` (2026-07-28, server/utilities/caching): read and repaired.

A peer may send anything there: invalid values count as the most restrictive. Keeps nothing, and knows no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.jsonrpc import Params, parse_text, raw

TTL: Final = "ttlMs"
SCOPE: Final = "cacheScope"
_PUBLIC, _PRIVATE = raw("public"), raw("private")
_SCOPES: Final = (_PUBLIC, _PRIVATE)

_DIGITS: Final = 11
"""The digits of a `ttlMs` up to LONGEST_TTL."""

LONGEST_TTL: Final = 365 * 86400.0
"""Seconds that a longer TTL is cut to."""


class Hints(msgspec.Struct, frozen=True):
    """`ttl` is in seconds, None if absent. A result that is not marked public is private."""

    ttl: float | None = None
    public: bool = False


_number = msgspec.json.Decoder(float)

UNSAID: Final = Hints()
"""The hints of a result without any."""


def least(pages: Iterable[Hints]) -> Hints:
    """The hints of a list in several pages: the shortest TTL, and private if one page is."""
    pages = tuple(pages)
    ttls = [page.ttl for page in pages if page.ttl is not None]
    said = bool(pages) and len(ttls) == len(pages)
    return Hints(min(ttls) if said else None, bool(pages) and all(page.public for page in pages))


def read_hints(result: Params) -> Hints:
    """The hints of a result. An invalid or negative TTL counts as 0."""
    public = SCOPE in result and parse_text(result[SCOPE]) == "public"
    return Hints(_seconds(result[TTL]) if TTL in result else None, public)


def repaired_hints(result: Params) -> Params:
    """The hints of a result that violate the schema, repaired: `ttlMs` a count, `cacheScope` one of two words.

    Invalid ones become the most restrictive: not cached at all, and not shared.
    """
    changes: Params = {}
    ttl, scope = result.get(TTL), result.get(SCOPE)
    if ttl is not None and not (len(ttl) <= _DIGITS and bytes(ttl).isdigit()):
        changes[TTL] = raw(int(_seconds(ttl) * 1000))
    if scope is not None and scope not in _SCOPES:
        changes[SCOPE] = _PUBLIC if parse_text(scope) == "public" else _PRIVATE
    return changes


def _seconds(ttl_ms: Raw) -> float:
    try:
        return min(max(0.0, _number.decode(ttl_ms) / 1000), LONGEST_TTL)
    except msgspec.MsgspecError:
        return 0.0
