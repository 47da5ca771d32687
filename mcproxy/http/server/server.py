"""Listens, bounds the number of connections, closes idle ones, and drains them all at the end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Final

from anyio.abc import TaskStatus

from mcproxy.http.server.connection import ServerConnection
from mcproxy.http.server.messages import RequestHandler
from mcproxy.http.server.owner import Bounds, MakeRefusal, OwnedConnection
from mcproxy.http.server.unsent import UnsentBytes

SWEEPS: Final = 4
"""Checks for idle connections within the time that one may be idle."""
MAX_REFUSED: Final = 64
"""Connections over the limit that are answered 503 at the same time; further ones are reset."""
BACKLOG: Final = 1024
"""Connections that wait to be accepted."""
TLS_HANDSHAKE: Final = 20.0
"""Seconds that the handshake of TLS may take."""


class Server:
    """Answers requests by `handler`, or by `refuse` if they reach none. `bounds` is called for each connection."""

    def __init__(self, handler: RequestHandler, refuse: MakeRefusal, bounds: Callable[[], Bounds]) -> None:
        self.handler = handler
        self.refuse = refuse
        self._bounds = bounds
        self._tasks: asyncio.TaskGroup | None = None
        self._connections: set[OwnedConnection] = set()
        self._unsent = UnsentBytes(lambda: self.bounds.unsent)
        self.closing = False
        self._listening: asyncio.Server | None = None
        self._emptied = asyncio.Event()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Begin to listen; returns the port. Raises OSError if that fails.

        An IPv6 address may stand in brackets; `::` means every address of both families.
        """
        addresses = [host.strip("[]")]
        if addresses == ["::"]:
            # Two sockets, so that the addresses of IPv4 peers stay IPv4 addresses.
            addresses.append("0.0.0.0")  # noqa: S104  # the operator's choice
            port = port or _free_port()
        self._listening = await asyncio.get_running_loop().create_server(
            lambda: ServerConnection(self),
            addresses,
            port,
            ssl=tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=None if tls is None else TLS_HANDSHAKE,
        )
        bound: int = self._listening.sockets[0].getsockname()[1]
        return bound

    async def listen_at(self, listener: socket.socket) -> None:
        """Begin to accept connections at a Unix socket that listens already; it is closed with the server."""
        self._listening = await asyncio.get_running_loop().create_unix_server(
            lambda: ServerConnection(self), sock=listener
        )

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Serve connections, and close those that are idle for too long, until cancelled. Start it before `listen`."""
        # Not anyio's group, which keeps more of each task than all the rest of an idle connection takes.
        async with asyncio.TaskGroup() as self._tasks:
            task_status.started()
            while True:
                await asyncio.sleep(self.bounds.idle / SWEEPS)
                self.expire(asyncio.get_running_loop().time())

    def expire(self, now: float) -> None:
        """Close connections that have been idle for too long; all forget the heads that they remember."""
        for connection in list(self._connections):
            connection.forget()
            if connection.has_expired(now):
                connection.close()

    def drain(self) -> None:
        """Accept no more connections and close idle ones; the others answer what they have read."""
        self.closing = True
        if self._listening is not None:
            self._listening.close()
        for connection in list(self._connections):
            if connection.is_idle:
                connection.close()

    async def close(self, grace: float) -> None:
        """Drain, and reset the connections that are left after `grace` seconds."""
        self.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self._connections:
                    self._emptied.clear()
                    await self._emptied.wait()
        for connection in list(self._connections):
            connection.reset()

    # owner.ConnectionOwner

    @property
    def bounds(self) -> Bounds:
        return self._bounds()

    @property
    def unsent(self) -> UnsentBytes:
        return self._unsent

    def opened(self, connection: OwnedConnection) -> None:
        self._connections.add(connection)
        excess = len(self._connections) - self.bounds.connections
        if excess > MAX_REFUSED:
            connection.reset()
        elif excess > 0:
            connection.refuse(503, "too many connections are open; try again later")

    def lost(self, connection: OwnedConnection) -> None:
        self._connections.discard(connection)
        self._unsent.discard(connection)
        if not self._connections:
            self._emptied.set()

    def serve(self, connection: OwnedConnection) -> None:
        assert self._tasks is not None, "run() comes before listen()"
        # In an empty context: another client's call may have ended the stream, and these requests are no part of it.
        self._tasks.create_task(connection.serve(), context=Context())


def _free_port() -> int:
    """A port that is free on all IPv6 addresses at this moment."""
    with socket.create_server(("::", 0), family=socket.AF_INET6) as probe:
        port: int = probe.getsockname()[1]
        return port
