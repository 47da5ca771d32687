"""Which resources a client watched on a stream that ended a short while ago: updates may have come since.

A client that watches one of them again missed what came between the end of that stream and the acknowledgement of the
next, and is sent one `updated` (requirement R21). Keeps hashes alone, and a bounded number of them.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from typing import Final

from cachetools import TTLCache

from mcproxy.call.identity import Caller

GAP: Final = 300.0
"""Seconds within which a stream counts as the continuation of one that ended."""
MAX_KEPT: Final = 20_000
"""Resources of ended streams that are remembered; the oldest are dropped."""


class EndedStreams:
    """`clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._ended: TTLCache[int, None] = TTLCache(MAX_KEPT, GAP, clock)

    @staticmethod
    def keys(caller: Caller, uris: Iterable[str]) -> array[int]:
        """Of the resources that a client watches, in their order: eight bytes each."""
        info = b"" if caller.info is None else bytes(caller.info)
        client = caller.principal.name, caller.endpoint, info
        return array("q", [hash((client, uri)) for uri in uris])

    def note(self, keys: array[int]) -> None:
        """A stream that watched these has ended."""
        for key in keys:
            self._ended[key] = None

    def missed(self, key: int) -> bool:
        """Whether a client's stream that watched this resource ended, and none has continued it. Asked once."""
        return self._ended.pop(key, self) is None
