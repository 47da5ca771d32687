"""Listens, and keeps its connections: how many there are, how long they idle, and how they all end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Final

from anyio.abc import TaskStatus

from mcproxy.http.server.connection import Bounds, MakeRefusal, ServerConnection
from mcproxy.http.server.messages import RequestHandler

SWEEPS: Final = 4
"""How often, in the time that a connection may idle, idle ones are looked for."""
TURNED_AWAY: Final = 64
"""Connections too many that are told so at the same time; further ones are hung up on."""
BACKLOG: Final = 1024
"""Connections that may wait to be accepted."""
HANDSHAKE: Final = 20.0
"""Seconds that TLS may take to begin."""


class Server:
    """Hands requests to `handler`. `refuse` says what is answered to those that do not reach it.

    `bounds` are asked for with each connection.
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
        """How many there are."""
        return len(self._connections)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Returns the port. Raises OSError where it cannot listen."""
        self._listening = await asyncio.get_running_loop().create_server(
            lambda: ServerConnection(self),
            host,
            port,
            ssl=tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=None if tls is None else HANDSHAKE,
        )
        taken: int = self._listening.sockets[0].getsockname()[1]
        return taken

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Serves connections, and ends those that idle for too long, until cancelled. Begins before it listens."""
        # Not anyio's group: what that keeps of each task is more than all the rest of a connection that idles.
        async with asyncio.TaskGroup() as self._tasks:
            task_status.started()
            while True:
                await asyncio.sleep(self.bounds.idle / SWEEPS)
                self.expire(asyncio.get_running_loop().time())

    def expire(self, now: float) -> None:
        """Ends connections that have been idle for too long, and has the others forget heads that they know."""
        for connection in list(self._connections):
            connection.forget()
            if connection.has_expired(now):
                connection.close()

    def drain(self) -> None:
        """Takes no more connections, and ends those that are idle; the others serve what they were asked."""
        self.closing = True
        if self._listening is not None:
            self._listening.close()
        for connection in list(self._connections):
            if connection.is_idle:
                connection.close()

    async def close(self, patience: float) -> None:
        """Ends every connection: in peace where that takes no longer than `patience` seconds."""
        self.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._connections:
                    self._emptied.clear()
                    await self._emptied.wait()
        for connection in list(self._connections):
            connection.reset()

    # connection.Owner

    @property
    def bounds(self) -> Bounds:
        return self._bounds()

    def opened(self, connection: ServerConnection) -> None:
        self._connections.add(connection)
        excess = len(self._connections) - self.bounds.connections
        if excess > TURNED_AWAY:
            connection.reset()
        elif excess > 0:
            connection.refuse(503, "too many connections are open; try again later")

    def lost(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._emptied.set()

    def serve(self, connection: ServerConnection) -> None:
        assert self._tasks is not None, "it runs before it listens"
        # In nobody's context: what ends a stream may belong to another client, and what is served then does not.
        self._tasks.create_task(connection.serve(), context=Context())
