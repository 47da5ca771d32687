"""What a connection is given by the server that owns it: bounds in bytes and seconds, the handler, and a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mcproxy.http.server.messages import RequestHandler, Response

if TYPE_CHECKING:
    from mcproxy.http.server.connection import ServerConnection

MakeRefusal = Callable[[int, str], Response]
"""Makes the response to what reaches no handler, from a status and a sentence."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a connection may take. Read once, when it is made."""

    max_body: int
    """Bytes of one request's body."""
    idle: float
    """Seconds without a whole request."""
    write_timeout: float
    """Seconds in which a client must take some of what was written."""
    connections: int
    """Connections at once."""
    head_timeout: float = 30
    """Seconds between the first byte of a head and its end."""


class ConnectionOwner(Protocol):
    """What a connection needs of its server."""

    handler: RequestHandler
    refuse: MakeRefusal

    @property
    def bounds(self) -> Bounds:
        """Those for a connection that is made now."""

    closing: bool
    """True once no connection reads another request."""

    def opened(self, connection: ServerConnection) -> None:
        """Take note of a connection that was made; it may be refused or reset by this. Called once."""

    def lost(self, connection: ServerConnection) -> None:
        """Let go of a connection that is closed. Called once."""

    def serve(self, connection: ServerConnection) -> None:
        """Run `ServerConnection.serve` in a task."""
