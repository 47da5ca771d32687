"""A server's connection on a transport that the test drives: it keeps what the connection does not read yet."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from contextvars import Context
from typing import Any

from mcproxy.http import server as http
from mcproxy.http.server.connection import ServerConnection
from mcproxy.http.server.owner import MakeRefusal, OwnedConnection
from mcproxy.http.server.states import CLOSED
from mcproxy.http.server.unsent import UnsentBytes
from tests.http.server.serving import BOUNDS, echo, refuse

TURNS = 40
"""Of the loop, after which everything that can go on without its client has."""


async def settle() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class DrivenTransport(asyncio.Transport):
    """Notes what is written, and delivers what the client sent only while reading is not paused."""

    def __init__(self, **info: Any) -> None:
        super().__init__()
        self.written = b""
        self.is_paused = False
        self.has_ended: str | None = None
        """How the connection ended this side."""
        self.unread: list[bytes] = []
        self._info = info

    def write(self, data: Any) -> None:
        assert self.has_ended is None, "nothing is written behind the end"
        self.written += data

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self.has_ended = "shut down"

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.has_ended = "closed"

    def abort(self) -> None:
        self.has_ended = "reset"

    def is_closing(self) -> bool:
        return self.has_ended in ("closed", "reset")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._info.get(name, default)

    def pause_reading(self) -> None:
        assert not self.is_paused, "it is paused already"
        self.is_paused = True

    def get_write_buffer_size(self) -> int:
        return 0

    def resume_reading(self) -> None:
        assert self.is_paused, "it is not paused"
        self.is_paused = False


class DrivenConnection:
    """One connection, and its server."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        handler: http.RequestHandler = echo,
        bounds: http.Bounds = BOUNDS,
        **info: Any,
    ) -> None:
        self.bounds = bounds
        self.handler = handler
        self.refuse: MakeRefusal = refuse
        self.closing = False
        self.unsent = UnsentBytes(lambda: bounds.unsent)
        self.lost_connections = 0
        self._tasks = tasks
        self.transport = DrivenTransport(**info)
        self.connection = ServerConnection(self)
        self.connection.connection_made(self.transport)

    @property
    def state(self) -> str:
        return self.connection.state.name

    def send(self, *pieces: bytes) -> None:
        """What the client sends; it is read as far as the connection reads."""
        transport = self.transport
        transport.unread += pieces
        while transport.unread and not (transport.is_paused or transport.is_closing()):
            self.connection.data_received(transport.unread.pop(0))

    async def settle(self) -> None:
        """Returns when nothing goes on any more without the client. Fails if bytes stay unread for ever."""
        while True:
            before = len(self.transport.unread)
            await settle()
            self.send()
            if len(self.transport.unread) == before:
                return

    def shut_down(self) -> bool:
        """Has the client shut down its side. Returns whether the transport stays open."""
        stays = self.connection.eof_received()
        if not stays:
            self.transport.close()
        return stays

    def take(self, *, goes_on: bool) -> None:
        """Has the client go on taking what is written, or stop."""
        if goes_on:
            self.connection.resume_writing()
        else:
            self.connection.pause_writing()

    def lose(self) -> None:
        """Closes the transport, if that has not happened."""
        if self.connection.state is not CLOSED:
            self.connection.connection_lost(None)

    @property
    def said(self) -> bytes:
        """What was written, but for the date, and how it ended."""
        end = b"" if self.transport.has_ended is None else b"(%b)" % self.transport.has_ended.encode()
        return re.sub(rb"Date: .*\r\n", b"", self.transport.written) + end

    # connection.ConnectionOwner

    def opened(self, connection: OwnedConnection) -> None:
        return

    def lost(self, connection: OwnedConnection) -> None:
        self.lost_connections += 1

    def serve(self, connection: OwnedConnection) -> None:
        self._tasks.create_task(connection.serve(), context=Context())
