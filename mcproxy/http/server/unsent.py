"""How many bytes may wait for clients to take them, over all connections; who takes nothing is disconnected first.

Knows no response, and writes none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol


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


class UnsentBytes:
    """The connections whose clients have not taken enough. `most` tells how many bytes may wait on all of them."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._waiting: OrderedDict[UnsentConnection, tuple[int, int]] = OrderedDict()
        """`held` and `unsent` of each when it was looked at last; the one looked at longest ago comes first."""
        self.total = 0
        """The bytes that all of them hold."""

    def add(self, connection: UnsentConnection) -> None:
        """Counts a connection; where too much waits by now, others are reset."""
        self._look_at(connection)
        self._make_room(connection)

    def discard(self, connection: UnsentConnection) -> None:
        """Its client has taken enough, or is gone. Idempotent."""
        self.total -= self._waiting.pop(connection, (0, 0))[0]

    def _look_at(self, connection: UnsentConnection) -> None:
        self.discard(connection)
        held = connection.held
        self._waiting[connection] = held, connection.unsent
        self.total += held

    def _make_room(self, newest: UnsentConnection) -> None:
        """Resets those whose clients took nothing since they were looked at; if that is not enough, the oldest too."""
        waiting, most = self._waiting, self._most()
        for _ in range(len(waiting) - 1):
            if self.total <= most:
                return
            connection, (_, before) = next(iter(waiting.items()))
            if connection.unsent < before:
                self._look_at(connection)
            else:
                self._reset(connection)
        waiting.move_to_end(newest)
        while self.total > most and len(waiting) > 1:
            self._reset(next(iter(waiting)))

    def _reset(self, connection: UnsentConnection) -> None:
        self.discard(connection)
        connection.reset()
