"""Fetch small JSON documents of OAuth issuers over HTTPS (R43). Follows no redirect, sends no credential.

URLs from the configuration are fetched wherever they are. A URL from an issuer's metadata that is not at the issuer
itself is fetched at public addresses only: a provider must not make the gateway connect to its own network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from yarl import URL

from mcproxy import __version__
from mcproxy.access.oauth.addresses import is_address, is_public

if TYPE_CHECKING:
    import aiohttp

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class FetchFailed(Exception):
    """Nothing came, or nothing that may be read. The text says what and why, for operators."""


class NotThere(FetchFailed):
    """The server says that there is no such document."""


class Fetch(Protocol):
    async def __call__(self, url: str, most: int, *, public: bool = False) -> bytes:
        """The body of a GET, of at most so many bytes; `public` addresses alone, where that is asked.

        The caller bounds the time. Raises Unreachable, or NotThere.
        """


async def fetch(url: str, most: int, *, public: bool = False) -> bytes:
    """As `Fetch`."""
    import aiohttp

    from mcproxy.access.oauth.resolver import PublicResolver

    target = URL(url)
    _check(target, public=public)
    connector = aiohttp.TCPConnector(resolver=PublicResolver() if public else None)
    headers = {"Accept": "application/json", "User-Agent": f"mcproxy/{__version__}"}
    try:
        async with (
            aiohttp.ClientSession(connector=connector, headers=headers) as http,
            http.get(target, allow_redirects=False) as response,
        ):
            return await _read(response, most)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise FetchFailed(f"{url}: {error or type(error).__name__}") from error


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    url = response.url
    if response.status in {404, 405, 410}:
        raise NotThere(f"{url} is not there: HTTP {response.status}")
    if response.status != 200:
        unfollowed = ", a redirect that is not followed" if 300 <= response.status < 400 else ""
        raise FetchFailed(f"{url} answered HTTP {response.status}{unfollowed}")
    body = b""
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most:
            raise FetchFailed(f"{url} answered with more than {most} bytes (oauth.keys_max_bytes)")
    return body


def _check(url: URL, *, public: bool) -> None:
    host = url.host or ""
    if url.scheme != "https" and not (url.scheme == "http" and host in _LOOPBACK and not public):
        raise FetchFailed(f"{url} is not https")
    if public and is_address(host) and not is_public(host):
        raise FetchFailed(f"{url} is at an address that is not public")
