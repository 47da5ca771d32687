"""How many bytes may wait for clients to take them, over all connections; where too many do, slow readers are cut off.

Knows no response, and writes none.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

PATIENCE: Final = 5.0
"""Seconds that a client has before it is judged, once too many bytes wait; half of them where twice as many wait."""
SLOWEST: Final = 64 * 1024
"""Bytes a second that a client must take where too many wait.

What it takes is seen as the kernel takes more from us, by large parts of a socket's buffer: over a few seconds a client
that reads several times as fast may seem to have stopped.
"""


class UnsentConnection(Protocol):
    """A connection as it is seen here."""

    @property
    def held(self) -> int:
        """Bytes that it keeps in memory until its client has taken the last of them."""

    @property
    def unsent(self) -> int:
        """How many of these its client has not taken yet."""

    def reset(self) -> None:
        """Ends it at once, so that the client knows that something is missing."""


class _Look(msgspec.Struct):
    """What a connection held, and had not sent, when it was looked at last."""

    held: int
    unsent: int
    at: float


class UnsentBytes:
    """The connections whose clients have not taken enough. `most` tells how many bytes may wait on all of them.

    Clients that keep on reading are never cut off, however much waits: what they hold is gone soon.
    """

    def __init__(self, most: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._looks: OrderedDict[UnsentConnection, _Look] = OrderedDict()
        """The connection that was looked at longest ago comes first."""
        self.total = 0
        """The bytes that all of them hold."""

    def add(self, connection: UnsentConnection) -> None:
        """Counts a connection, or what it holds by now; where too much waits, slow readers are cut off."""
        look, held = self._looks.get(connection), connection.held
        if look is None:
            look = self._looks[connection] = _Look(0, connection.unsent, self._clock())
        self.total += held - look.held
        look.held = held
        self._make_room()

    def discard(self, connection: UnsentConnection) -> None:
        """Its client has taken enough, or is gone. Idempotent."""
        look = self._looks.pop(connection, None)
        if look is not None:
            self.total -= look.held

    def _make_room(self) -> None:
        most = self._most()
        while self.total > most and len(self._looks) > 1:
            connection, look = next(iter(self._looks.items()))
            now, unsent = self._clock(), connection.unsent
            seconds = now - look.at
            if seconds < PATIENCE * most / self.total:
                return  # and all others were looked at later
            if look.unsent - unsent < SLOWEST * seconds:
                self.discard(connection)
                connection.reset()
            else:
                look.unsent, look.at = unsent, now
                self._looks.move_to_end(connection)
