"""Through an HTTP proxy: by a tunnel (CONNECT, RFC 9110, section 9.3.6), or plain requests with absolute targets.

Errors name the proxy, never its password.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from yarl import URL

from mcproxy.http.client.connection import ClientConnection
from mcproxy.http.client.response import ClientResponse, ConnectionBroken
from mcproxy.http.client.way import ConnectFailed, Proxy

MAX_ANSWER: Final = 16 * 1024
"""Bytes of the head with which a proxy answers CONNECT."""
UNAUTHORIZED: Final = 407


class ProxyFailed(OSError):
    """The proxy opened no way to the server. The text says why, with the proxy as "it"."""


class Tunnel(asyncio.Protocol):
    """Asks a proxy for a connection to a server, on a new connection to the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.transport: asyncio.Transport
        self._answer = b""
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, url: URL) -> None:
        """Returns when the connection leads to the server. Raises ProxyFailed."""
        target = f"{_bracketed(url)}:{url.port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *_authorization(self._proxy), "", ""]
        self.transport.write("\r\n".join(lines).encode())
        await self._opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses of it

    def data_received(self, data: bytes) -> None:
        if self._opened.done():
            return
        self._answer += data
        head, end, rest = self._answer.partition(b"\r\n\r\n")
        if not end:
            if len(self._answer) > MAX_ANSWER:
                self._fail("it answers with something other than HTTP")
            return
        parts = head.partition(b"\r\n")[0].split(None, 2)
        if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
            self._fail("it answers with something other than HTTP")
        elif (status := int(parts[1])) in range(200, 300):
            if rest:
                self._fail("it sends more than it was asked for")
            else:
                self._opened.set_result(None)
        else:
            reason = parts[2].decode("ascii", "replace")[:80] if len(parts) > 2 else ""
            self._fail(refusal(self._proxy, status, reason))

    def eof_received(self) -> None:
        self._fail("it closed the connection without opening a tunnel")

    def connection_lost(self, exc: Exception | None) -> None:
        why = f" ({exc})" if exc is not None and str(exc) else ""
        self._fail(f"it closed the connection without opening a tunnel{why}")

    def _fail(self, why: str) -> None:
        if not self._opened.done():
            self._opened.set_exception(ProxyFailed(why))


class ForwardedConnection(ClientConnection):
    """A connection to a proxy, which forwards plain requests to one server (RFC 9112, section 3.2.2)."""

    __slots__ = ("_origin", "_proxy", "_proxy_fields")

    def through(self, proxy: Proxy, url: URL) -> None:
        """Set the proxy, and the server that it forwards requests to."""
        self._proxy = proxy
        self._origin = f"{url.scheme}://{url.host_port_subcomponent}".encode()
        self._proxy_fields = "".join(f"{line}\r\n" for line in _authorization(proxy)).encode()

    async def exchange(self, request: bytes) -> ClientResponse:
        """As of any connection. Raises ConnectFailed too, if the proxy wants other credentials."""
        line, _, rest = request.partition(b"\r\n")
        method, _, target = line.partition(b" ")
        try:
            response = await super().exchange(
                b"%b %b%b\r\n%b%b" % (method, self._origin, target, self._proxy_fields, rest)
            )
        except ConnectionBroken as broken:
            sentence = f"the proxy {self._proxy} broke it: {broken}"
            raise ConnectionBroken(sentence, is_unanswered=broken.is_unanswered) from broken
        if response.head.status == UNAUTHORIZED:
            response.close()
            refused = ProxyFailed(refusal(self._proxy, UNAUTHORIZED, response.head.reason))
            raise ConnectFailed(self._proxy) from refused
        return response


def refusal(proxy: Proxy, status: int, reason: str) -> str:
    """Why a proxy opens no way, and what to do about it."""
    if status in (401, UNAUTHORIZED):  # 401 is tinyproxy's, for a wrong password
        has = "other credentials" if proxy.authorization else "a user and a password"
        return f"it wants {has} (HTTP {status}): write http://USER:PASSWORD@HOST:PORT to {proxy.source or 'its URL'}"
    sentence = f"it answers HTTP {status} {reason}".rstrip()
    if status == 403:
        return f"{sentence}: its rules do not allow this host or port"
    return f"{sentence}: it cannot reach the server" if status >= 500 else sentence


def _authorization(proxy: Proxy) -> list[str]:
    return [] if proxy.authorization is None else [f"Proxy-Authorization: {proxy.authorization}"]


def _bracketed(url: URL) -> str:
    host = url.raw_host or ""
    return f"[{host}]" if ":" in host else host
