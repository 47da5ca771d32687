"""The connections to one server: made when needed, kept for the next request, closed when idle for too long.

Repeats a request only if its method allows that, and nothing was answered to the first (RFC 9110, section 9.2.2).
Knows no redirects and no cookies. Somebody else decides whether a connection goes through a proxy (`way`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from ssl import SSLContext
from threading import Thread
from typing import Final, TypeVar

import anyio
from aiohappyeyeballs import AddrInfoType, start_connection
from yarl import URL

from mcproxy.http.client.connection import KEEP_ALIVE, ClientConnection
from mcproxy.http.client.heads import ResponseHead, write_request
from mcproxy.http.client.response import ClientResponse, ConnectionBroken
from mcproxy.http.client.tunnel import ForwardedConnection, Tunnel
from mcproxy.http.client.way import ConnectFailed, Proxy, Way, Ways, direct
from mcproxy.http.head_cache import HeadCache

SWEEPS: Final = 4
"""How often idle connections are looked at, in the time that one may be idle."""
HAPPY_EYEBALLS_DELAY: Final = 0.25
"""Seconds after which the next address is tried beside the first (RFC 8305, section 5)."""

_PROBES: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Of a silent connection: seconds before the first probe, seconds between two, and how many may stay unanswered."""

AT_ONCE: Final = 0.5
"""Seconds. A server that closes a connection so soon after a response, as uvicorn does with `timeout_keep_alive=0`,
closes each: none of them serves twice.
"""
_MARGIN: Final = 0.8
"""The part of the time that a server was seen to keep a connection, after which it does not serve again."""

_REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})

LOOK_UPS: Final = 4
"""Names that one pool has looked up at once; who waits longer than connecting may take gives up."""

P = TypeVar("P", bound=asyncio.Protocol)
Origin = tuple[str, str | None, int | None]
LookUp = Callable[..., Sequence[AddrInfoType]]
"""`socket.getaddrinfo`, which blocks its thread, or another function that answers as it does."""


def origin(url: URL) -> Origin:
    """The scheme, host and port of a URL (RFC 6454)."""
    return url.scheme, url.host, url.port


class Pool:
    """Connections for requests to one server, or few.

    `connect_timeout`: seconds that connecting may take, TLS included. `max_idle`: connections that are kept while
    idle. `keep_alive`: seconds that each of them is kept, or less where its server says so. `ways` decides how each
    connection is made. `look_up` finds the addresses of names.
    """

    def __init__(
        self,
        connect_timeout: float,
        max_idle: int,
        keep_alive: float = KEEP_ALIVE,
        ways: Ways = direct,
        look_up: LookUp = socket.getaddrinfo,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connect_timeout = connect_timeout
        self._look_up = look_up
        self._look_ups = asyncio.Semaphore(LOOK_UPS)
        self._max_idle = max_idle
        self._keep_alive = keep_alive
        self._ways = ways
        self._is_closed = False
        self._urls: dict[ClientConnection, URL] = {}
        """The URL that each connection was made for."""
        self._idle: dict[ClientConnection, float] = {}
        """Those that are idle, and since when; the last of them is idle for the shortest time."""
        self._patience = keep_alive
        """Seconds of idleness after which a connection serves again, as far as the server has shown."""
        self._timer: asyncio.TimerHandle | None = None
        self._heads = HeadCache[ResponseHead]()

    @property
    def idle(self) -> int:
        """How many connections are idle."""
        return len(self._idle)

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._urls)

    def request(self, method: str, url: URL, head: bytes, body: bytes | None = None) -> Awaitable[ClientResponse]:
        """Send a request: `head` is from `write_head`.

        Raises ConnectFailed if nothing was sent, and ConnectionBroken if it is unknown what became of the request.
        """
        request = write_request(head, body)
        kept = self._take(url)
        if kept is None:
            return self._exchange_anew(url, request)
        return self._exchange_again(kept, url, request) if method in _REPEATABLE else kept.exchange(request)

    async def _exchange_anew(self, url: URL, request: bytes) -> ClientResponse:
        return await (await self._connect(url)).exchange(request)

    async def _exchange_again(self, kept: ClientConnection, url: URL, request: bytes) -> ClientResponse:
        """Repeats the request on a new connection if the server has closed the kept one meanwhile."""
        try:
            return await kept.exchange(request)
        except ConnectionBroken as broken:
            if not broken.is_unanswered:
                raise
        return await self._exchange_anew(url, request)

    def close(self) -> None:
        """End every connection, those too that are being made."""
        self._is_closed = True
        self._close_idle()
        for connection in list(self._urls):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()

    def _take(self, wanted: URL) -> ClientConnection | None:
        """The connection that was idle for the shortest time: it is the least likely to be closed meanwhile."""
        now = self._loop.time()
        for connection, since in reversed(self._idle.items()):
            rested = now - since
            if rested >= self._patience:
                return None  # all others have been idle for longer
            if connection.has_expired(now):
                continue
            url = self._urls[connection]
            if url is wanted or origin(url) == origin(wanted):
                del self._idle[connection]
                connection.rested = rested
                return connection
        return None

    async def _connect(self, url: URL) -> ClientConnection:
        # In an empty context: a connection outlives the call that it is made for, and would hold all that is in it.
        try:
            way = self._ways(url)
        except (OSError, ValueError) as error:
            raise ConnectFailed from error
        connecting = self._loop.create_task(self._connected(url, way), context=Context())
        try:
            connection = await connecting
        except (OSError, ValueError) as error:
            raise ConnectFailed(way.proxy) from error
        except asyncio.CancelledError:
            connecting.add_done_callback(_abort_made)
            raise
        if self._is_closed:
            connection.abort()
            raise ConnectFailed from ConnectionAbortedError("it was given up while the connection was made")
        if connection.is_closed:
            raise ConnectFailed(way.proxy) from ConnectionResetError(
                "the server closed the connection as soon as it was made"
            )
        self._urls[connection] = url
        return connection

    async def _connected(self, url: URL, way: Way) -> ClientConnection:
        with anyio.fail_after(self._connect_timeout):
            if way.proxy is not None:
                return await self._connected_through(way.proxy, url, way)
            connected = await self._socket(url.raw_host or "", url.port or 0, way)
            return await self._over(connected, self._connection(), way.tls, way.server_name or url.raw_host or "")

    async def _connected_through(self, proxy: Proxy, url: URL, way: Way) -> ClientConnection:
        """A connection through a proxy: by a tunnel for https. The server's name is not looked up here."""
        connected = await self._socket(proxy.host, proxy.port, Way())
        if way.tls is None:
            # For one request: some proxies, such as tinyproxy, close the connection after a response without a word.
            forwarded = ForwardedConnection(ClientConnection.close, self._forget, self._heads, self._keep_alive)
            forwarded.through(proxy, url)
            return await self._over(connected, forwarded, way.proxy_tls, proxy.host)
        tunnel = await self._over(connected, Tunnel(proxy), way.proxy_tls, proxy.host)
        try:
            await tunnel.open(url)
            connection = self._connection()
            name = way.server_name or url.raw_host or ""
            encrypted = await self._loop.start_tls(tunnel.transport, connection, way.tls, server_hostname=name)
        except BaseException:
            tunnel.transport.abort()
            raise
        if encrypted is None:
            raise ConnectionAbortedError("it was closed while TLS began")
        connection.connection_made(encrypted)
        return connection

    def _connection(self) -> ClientConnection:
        return ClientConnection(self._keep, self._forget, self._heads, self._keep_alive)

    async def _over(self, connected: socket.socket, protocol: P, tls: SSLContext | None, name: str) -> P:
        """The protocol, on a connection that is made; encrypted with `tls`."""
        await self._loop.create_connection(
            lambda: protocol, sock=connected, ssl=tls, server_hostname=None if tls is None else name
        )
        return protocol

    async def _socket(self, host: str, port: int, way: Way) -> socket.socket:
        if way.socket is not None:
            return await self._unix_socket(way.socket)
        addresses = await self._addresses(host, port)
        if way.permits is not None:
            addresses = [each for each in addresses if way.permits(str(each[4][0]))]
            if not addresses:
                raise OSError(None, f"{host} has no public address")
        connected = await start_connection(addresses, happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY)
        _probe_in_silence(connected)
        return connected

    async def _unix_socket(self, path: str) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.setblocking(False)
        try:
            await self._loop.sock_connect(connected, path)
        except BaseException:
            connected.close()
            raise
        return connected

    async def _addresses(self, host: str, port: int) -> Sequence[AddrInfoType]:
        """The addresses of a host. Raises OSError.

        Not by the loop: uvloop has two names looked up at once by the whole process, and connects and listens through
        the same queue, so that two names whose servers do not answer would hold up all of that for half a minute.
        """
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            return await self._looked_up(partial(self._look_up, host, port, type=socket.SOCK_STREAM))

    async def _looked_up(self, look_up: Callable[[], Sequence[AddrInfoType]]) -> Sequence[AddrInfoType]:
        """In a thread that has its place until it ends, though its request be given up; exiting waits for none."""
        await self._look_ups.acquire()
        answer: asyncio.Future[Sequence[AddrInfoType]] = self._loop.create_future()

        def end(found: Sequence[AddrInfoType] | Exception) -> None:
            self._look_ups.release()
            if answer.done():
                return
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def run() -> None:
            found: Sequence[AddrInfoType] | Exception = OSError("the look-up ended without an answer")
            try:
                found = look_up()
            except (OSError, ValueError) as error:
                found = error
            finally:
                with suppress(RuntimeError):  # the loop may have ended meanwhile
                    self._loop.call_soon_threadsafe(end, found)

        try:
            Thread(target=run, daemon=True).start()
        except RuntimeError as error:
            self._look_ups.release()
            raise OSError(str(error)) from error
        return await answer

    def _keep(self, connection: ClientConnection) -> None:
        if len(self._idle) >= self._max_idle:
            connection.close()
            return
        self._idle[connection] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._keep_alive / SWEEPS, self._sweep)

    def _forget(self, connection: ClientConnection, is_unanswered: bool) -> None:
        self._urls.pop(connection, None)
        since = self._idle.pop(connection, None)
        if since is not None:
            self._note_closed(self._loop.time() - since)
        if is_unanswered:
            self._note_closed(connection.rested)
            self._close_idle()  # if the server has closed one meanwhile, it has closed the others

    def _note_closed(self, rested: float) -> None:
        """Notes that the server closed a connection that had been idle for so many seconds."""
        self._patience = min(self._patience, 0.0 if rested < AT_ONCE else rested * _MARGIN)

    def _sweep(self) -> None:
        """Closes the connections that have been idle for too long."""
        now = self._loop.time()
        if any(now - since > 2 * self._patience + 2 * AT_ONCE for since in self._idle.values()):
            self._patience = self._keep_alive  # the server keeps connections for longer than it seemed
        for connection in [connection for connection in self._idle if connection.has_expired(now)]:
            self._close(connection)
        self._timer = self._loop.call_later(self._keep_alive / SWEEPS, self._sweep) if self._idle else None

    def _close_idle(self) -> None:
        for connection in list(self._idle):
            self._close(connection)

    def _close(self, connection: ClientConnection) -> None:
        """Closes an idle connection, of which the server is not to blame."""
        del self._idle[connection]
        connection.close()


def _probe_in_silence(connected: socket.socket) -> None:
    """Has the system ask after a peer that is silent (RFC 9293, section 3.8.4).

    A stream without events is silent for hours; one that a firewall or a crash cut off would be waited for without end.
    """
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if hasattr(socket, name):  # macOS has not all of them
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _abort_made(connecting: asyncio.Task[ClientConnection]) -> None:
    """Ends a connection that was made in the same moment as the request that it was for was cancelled."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().abort()
