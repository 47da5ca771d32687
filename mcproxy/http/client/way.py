"""The way to a server, as somebody else decided it: direct or through a proxy, with which TLS, to which addresses."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import msgspec
from yarl import URL


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy. `str` shows neither user nor password."""

    host: str
    port: int
    is_tls: bool = False
    authorization: str | None = None
    """The value of `Proxy-Authorization`."""
    source: str = ""
    """The setting or variable that names it."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


class Way(msgspec.Struct, frozen=True):
    """How to connect to one server.

    `tls` is for https; `server_name` is the name in the server's certificate, if not that of the URL. `permits` judges
    the addresses of a direct connection. `socket` is a Unix socket to connect to, whatever the host.
    """

    proxy: Proxy | None = None
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    permits: Callable[[str], bool] | None = None
    proxy_tls: ssl.SSLContext | None = None
    socket: str | None = None


Ways = Callable[[URL], Way]
"""Decides the way of a new connection. Raises OSError or ValueError if there is none."""


class ConnectFailed(Exception):
    """No connection could be made. The cause, an OSError or ValueError, says why."""

    def __init__(self, proxy: Proxy | None = None) -> None:
        super().__init__()
        self.proxy = proxy
        """The proxy that it should have gone through."""


def direct(url: URL) -> Way:
    """Without a proxy, trusting the system's authorities, which are read for each connection."""
    return Way(tls=ssl.create_default_context() if url.scheme == "https" else None)
