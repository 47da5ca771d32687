"""Connections of one link, kept for the next request: how they are made, how long they wait, and when they all end.

Sends a request twice only where its method says that this is safe, and nothing was heard of the first (RFC 9110,
section 9.2.2). Knows no redirects, cookies or proxies.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable
from contextvars import Context
from typing import Final

import anyio
from aiohappyeyeballs import start_connection
from yarl import URL

from mcproxy.http.client.connection import ClientConnection
from mcproxy.http.client.head_cache import HeadCache
from mcproxy.http.client.headers import write_request
from mcproxy.http.client.response import Broken, ClientResponse

LONGEST_IDLE: Final = 15.0
"""Seconds that a connection waits for another request; servers mostly give up later."""
HAPPY_EYEBALLS_DELAY: Final = 0.25
"""Seconds after which the next address is tried beside the first (RFC 8305, section 5)."""

_REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})

Origin = tuple[str, str | None, int | None]


class Unreached(Exception):
    """No connection could be made. The cause, an OSError or ValueError, says why."""


def origin(url: URL) -> Origin:
    return url.scheme, url.host, url.port


class Pool:
    """`patience`: seconds that connecting may take. `most_idle`: connections that may wait for requests."""

    def __init__(self, patience: float, most_idle: int, longest_idle: float = LONGEST_IDLE) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._most_idle = most_idle
        self._longest_idle = longest_idle
        self._tls: ssl.SSLContext | None = None
        self._urls: dict[ClientConnection, URL] = {}
        """For which each was made."""
        self._idle: dict[ClientConnection, float] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._recognition = HeadCache()

    @property
    def idle(self) -> int:
        """How many connections wait for a request."""
        return len(self._idle)

    def request(self, method: str, url: URL, head: bytes, body: bytes | None = None) -> Awaitable[ClientResponse]:
        """Sends what `write_head` made, and `body`.

        Raises Unreached where nothing was sent, and Broken where nobody knows what became of it.
        """
        request = write_request(head, body)
        kept = self._take(url)
        if kept is None:
            return self._exchange_anew(url, request)
        return self._exchange_again(kept, url, request) if method in _REPEATABLE else kept.exchange(request)

    async def _exchange_anew(self, url: URL, request: bytes) -> ClientResponse:
        return await (await self._connect(url)).exchange(request)

    async def _exchange_again(self, kept: ClientConnection, url: URL, request: bytes) -> ClientResponse:
        """On another connection where this one has been closed meanwhile."""
        try:
            return await kept.exchange(request)
        except Broken as broken:
            if not broken.silent:
                raise
        return await self._exchange_anew(url, request)

    def close(self) -> None:
        """Ends every connection."""
        self._close_idle()
        for connection in list(self._urls):
            connection.abort()
        if self._expiry is not None:
            self._expiry.cancel()

    def _take(self, wanted: URL) -> ClientConnection | None:
        """The connection that waited least: it is the least likely to be closed meanwhile."""
        for connection in reversed(self._idle):
            url = self._urls[connection]
            if url is wanted or origin(url) == origin(wanted):
                del self._idle[connection]
                return connection
        return None

    async def _connect(self, url: URL) -> ClientConnection:
        # In an empty context: a connection outlives the call that it is made for, and would hold all that is in it.
        try:
            connection = await self._loop.create_task(self._connected(url), context=Context())
        except (OSError, ValueError) as error:
            raise Unreached from error
        self._urls[connection] = url
        return connection

    async def _connected(self, url: URL) -> ClientConnection:
        with anyio.fail_after(self._patience):
            connected = await start_connection(
                await self._loop.getaddrinfo(url.raw_host or "", url.port or 0, type=socket.SOCK_STREAM),
                happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY,
            )
            _, connection = await self._loop.create_connection(
                lambda: ClientConnection(self._keep, self._forget, self._recognition),
                sock=connected,
                ssl=self._context() if url.scheme == "https" else None,
                server_hostname=url.raw_host if url.scheme == "https" else None,
            )
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _keep(self, connection: ClientConnection) -> None:
        if len(self._idle) >= self._most_idle:
            connection.close()
            return
        now = self._loop.time()
        self._idle[connection] = now
        if self._expiry is None:
            self._expire_at(now + self._longest_idle)

    def _forget(self, connection: ClientConnection, silently: bool) -> None:
        self._urls.pop(connection, None)
        self._idle.pop(connection, None)
        if silently:
            self._close_idle()  # where one has been closed meanwhile, so have the others

    def _expire_at(self, when: float) -> None:
        self._expiry = self._loop.call_at(when, self._expire)

    def _expire(self) -> None:
        """Closes what has waited too long, oldest first, and comes back for the rest."""
        horizon = self._loop.time() - self._longest_idle
        for connection, since in list(self._idle.items()):
            if since > horizon:
                self._expire_at(since + self._longest_idle)
                return
            connection.close()
        self._expiry = None

    def _close_idle(self) -> None:
        for connection in list(self._idle):
            connection.close()
