"""The caching hints of a result, `ttlMs` and `cacheScope` (2026-07-28, server/utilities/caching): read and repaired.

A peer may have written anything there: what makes no sense counts as the least. Keeps nothing, and knows no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.jsonrpc import Params, parse_text, raw

TTL: Final = "ttlMs"
SCOPE: Final = "cacheScope"
_PUBLIC, _PRIVATE = raw("public"), raw("private")
_SCOPES: Final = (_PUBLIC, _PRIVATE)

_DIGITS: Final = 11
"""Of `ttlMs` up to LONGEST_TTL."""

LONGEST_TTL: Final = 365 * 86400.0
"""Seconds; a longer TTL is cut to this."""


@dataclass(frozen=True, slots=True)
class Hints:
    """`ttl` is in seconds, None where nothing is said. What does not say that it is public is private."""

    ttl: float | None = None
    public: bool = False


_number = msgspec.json.Decoder(float)

UNSAID: Final = Hints()
"""The hints of a result that has none."""


def least(pages: Iterable[Hints]) -> Hints:
    """The hints of a list that came in pages: the shortest TTL, and private if one page is."""
    pages = tuple(pages)
    ttls = [page.ttl for page in pages if page.ttl is not None]
    said = bool(pages) and len(ttls) == len(pages)
    return Hints(min(ttls) if said else None, bool(pages) and all(page.public for page in pages))


def read_hints(result: Params) -> Hints:
    """The hints of a result. A TTL that makes no sense counts as 0, as the negative does."""
    public = SCOPE in result and parse_text(result[SCOPE]) == "public"
    return Hints(_seconds(result[TTL]) if TTL in result else None, public)


def repaired_hints(result: Params) -> Params:
    """The hints of a result, where they are not as the schema has them: `ttlMs` a count, `cacheScope` one of two words.

    What makes no sense is what clients may do least with: not kept at all, and not shared.
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
