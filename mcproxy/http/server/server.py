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
from mcproxy.http.server.owner import Bounds, MakeRefusal

SWEEPS: Final = 4
"""How often connections are looked at, in the time that one may be idle."""
MAX_REFUSED: Final = 64
"""Connections over the limit that are answered 503 at the same time; further ones are reset."""
BACKLOG: Final = 1024
"""Connections that wait to be accepted."""
TLS_HANDSHAKE: Final = 20.0
"""Seconds that the handshake of TLS may take."""


class Server:
    """Has requests answered by `handler`, and by `refuse` what reaches no handler.

    `bounds` is called for each connection.
    """

    def __init__(self, handler: RequestHandler, refuse: MakeRefusal, bounds: Callable[[], Bounds]) -> None:
        self.handler = handler
        self.refuse = refuse
        self._bounds = bounds
        self._tasks: asyncio.TaskGroup | None = None
        self._connections: set[ServerConnection] = set()
        self.closing = False
        self._listening: asyncio.Server | None = None
        self._emptied = asyncio.Event()

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Begin to listen; returns the port. Raises OSError if that fails."""
        self._listening = await asyncio.get_running_loop().create_server(
            lambda: ServerConnection(self),
            host,
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
        # Not anyio's group: what that keeps of each task is more than all the rest of an idle connection.
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

    # connection.ConnectionOwner

    @property
    def bounds(self) -> Bounds:
        return self._bounds()

    def opened(self, connection: ServerConnection) -> None:
        self._connections.add(connection)
        excess = len(self._connections) - self.bounds.connections
        if excess > MAX_REFUSED:
            connection.reset()
        elif excess > 0:
            connection.refuse(503, "too many connections are open; try again later")

    def lost(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._emptied.set()

    def serve(self, connection: ServerConnection) -> None:
        assert self._tasks is not None, "run() comes before listen()"
        # In an empty context: the end of a stream may be another client's doing, and what is served then is not.
        self._tasks.create_task(connection.serve(), context=Context())
