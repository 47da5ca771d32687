"""The interfaces between a connection and its server: what each calls of the other; and the bounds of a connection.

Both are protocols, so that neither module imports the other for its types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from mcproxy.http.server.messages import RequestHandler, Response
from mcproxy.http.server.unsent import UnsentBytes, UnsentConnection

MakeRefusal = Callable[[int, str], Response]
"""Makes the response to a request that reaches no handler, from a status and a sentence."""


class Bounds(msgspec.Struct, frozen=True):
    """The limits of a connection. Read once, when it is made."""

    max_body: int
    """Bytes of one request's body."""
    idle: float
    """Seconds without a whole request."""
    write_timeout: float
    """Seconds within which a client must read some of what was written."""
    connections: int
    """Connections at once."""
    head_timeout: float = 30
    """Seconds between the first byte of a head and its end."""
    unsent: int = 256 * 1024 * 1024
    """Bytes that may wait on all connections for clients that do not take them."""


class OwnedConnection(UnsentConnection, Protocol):
    """A connection as its server sees it."""

    @property
    def is_idle(self) -> bool:
        """True if nothing is being answered."""

    def has_expired(self, now: float) -> bool:
        """True if it has been idle for more than `Bounds.idle` seconds. `now`: the loop's time."""

    def forget(self) -> None:
        """Frees all memory that the next request does not need."""

    async def serve(self) -> None:
        """Handles one request after another, until the connection is lost, or a stream outlasts its handler."""

    def close(self) -> None:
        """Ends it once the client has read what was written."""

    def refuse(self, status: int, sentence: str) -> None:
        """Reads no more. Requests that were read are answered; if there are none, the refusal is sent."""


class ConnectionOwner(Protocol):
    """A server as its connections see it."""

    handler: RequestHandler
    refuse: MakeRefusal

    @property
    def unsent(self) -> UnsentBytes:
        """What waits for clients that do not take it."""

    @property
    def bounds(self) -> Bounds:
        """The limits of a connection that is made now."""

    closing: bool
    """True once no connection reads another request."""

    def opened(self, connection: OwnedConnection) -> None:
        """Takes note of a new connection, and may refuse or reset it. Called once."""

    def lost(self, connection: OwnedConnection) -> None:
        """Forgets a connection that is closed. Called once."""

    def serve(self, connection: OwnedConnection) -> None:
        """Runs `OwnedConnection.serve` in a task."""
