"""The resources and lists that a client watched on a stream that ended recently: they may have changed since.

A client that watches one of them again missed what came between the end of that stream and the acknowledgement of the
next, so it is sent one notification (requirement R21). Keeps only hashes, and a bounded number of them.
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
"""Resources and lists of ended streams that are remembered; the oldest are dropped."""


class EndedStreams:
    """`clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._ended: TTLCache[int, int] = TTLCache(MAX_KEPT, GAP, clock)
        """By key, the number of streams that watched it, have ended and are not continued; clients may look alike."""

    @staticmethod
    def keys(caller: Caller, names: Iterable[str]) -> array[int]:
        """The keys of the URIs and flags of a client's stream, in their order: eight bytes each."""
        info = b"" if caller.info is None else bytes(caller.info)
        client = caller.principal.name, caller.endpoint, info
        return array("q", [hash((client, name)) for name in names])

    def note(self, keys: array[int]) -> None:
        """Notes that a stream that watched these has ended."""
        for key in keys:
            self._ended[key] = self._ended.get(key, 0) + 1

    def missed(self, key: int) -> bool:
        """Whether a client's stream that watched this ended without a successor. Each new stream asks once."""
        left = self._ended.pop(key, 0) - 1
        if left > 0:
            self._ended[key] = left
        return left >= 0
