"""What a result says of how long it may be kept, and by whom (2026-07-28, server/utilities/caching).

Reads it, and puts no trust in it: a peer may have written anything there. Keeps nothing, and knows no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.jsonrpc import Params, parse_text

LONGEST_TTL: Final = 365 * 86400.0
"""Seconds; who says more means this."""


@dataclass(frozen=True, slots=True)
class Hints:
    """`ttl` is in seconds, None where nothing is said. What does not say that it is public is private."""

    ttl: float | None = None
    public: bool = False


_number = msgspec.json.Decoder(float)

UNSAID: Final = Hints()
"""Of what says nothing."""


def least(pages: Iterable[Hints]) -> Hints:
    """Of a list that came in pages: the shortest time, and private if one page is."""
    pages = tuple(pages)
    ttls = [page.ttl for page in pages if page.ttl is not None]
    said = bool(pages) and len(ttls) == len(pages)
    return Hints(min(ttls) if said else None, bool(pages) and all(page.public for page in pages))


def read_hints(result: Params) -> Hints:
    """The hints of a result. A TTL that makes no sense counts as 0, as the negative does."""
    public = "cacheScope" in result and parse_text(result["cacheScope"]) == "public"
    return Hints(_seconds(result["ttlMs"]) if "ttlMs" in result else None, public)


def _seconds(ttl_ms: Raw) -> float:
    try:
        return min(max(0.0, _number.decode(ttl_ms) / 1000), LONGEST_TTL)
    except msgspec.MsgspecError:
        return 0.0
