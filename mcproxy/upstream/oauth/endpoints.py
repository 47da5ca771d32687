"""Requests to authorization servers, over aiohttp: bounded, to permitted addresses only, following no redirect.

URLs that an operator wrote (the upstream's, a pinned issuer's) may have any address. URLs that a server named must be
https at a public address, so that no server can make the gateway reach into its own network; but a server on loopback
may name others on loopback, over plain http (requirement R43).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
from yarl import URL

from mcproxy import __version__
from mcproxy.egress.addresses import is_address, is_public
from mcproxy.settings.loopback import is_loopback

if TYPE_CHECKING:
    import aiohttp

MAX_ANSWER: Final = 256 * 1024
"""Bytes of one answer."""
TIMEOUT: Final = 15.0
"""Seconds for one answer, including the connection."""


class EndpointFailed(Exception):
    """No answer, none that could be read, or a URL that may not be requested. The text says which and why."""


class HttpAnswer(NamedTuple):
    """The whole answer of an endpoint, whatever its status."""

    status: int
    body: bytes
    content_type: str
    challenge: str | None
    """The `WWW-Authenticate` header, its lines joined."""


class Endpoints:
    """`trusted` are URLs that an operator wrote: their hosts may have any address."""

    def __init__(self, trusted: tuple[str, ...]) -> None:
        urls = [URL(url) for url in trusted]
        self._trusted = {url.host for url in urls}
        self._names_loopback = any(is_loopback(url.host or "") for url in urls)

    async def get(self, url: str) -> HttpAnswer:
        """Raises EndpointFailed."""
        return await self._ask("GET", url, None, {"Accept": "application/json"})

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        """Raises EndpointFailed."""
        return await self._ask("POST", url, body, headers)

    async def _ask(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> HttpAnswer:
        import aiohttp

        from mcproxy.access.outgoing.resolver import PublicResolver

        target = self._checked(url)
        anywhere = self._is_expected(target.host or "")
        connector = aiohttp.TCPConnector(resolver=None if anywhere else PublicResolver())
        fields = {"User-Agent": f"mcproxy/{__version__}", **headers}
        try:
            with anyio.fail_after(TIMEOUT):
                async with (
                    aiohttp.ClientSession(connector=connector) as http,
                    http.request(method, target, data=body, headers=fields, allow_redirects=False) as response,
                ):
                    return await _read(response)
        except TimeoutError as error:
            raise EndpointFailed(f"{url} did not answer within {TIMEOUT:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EndpointFailed(f"{url}: {error or type(error).__name__}") from error

    def _is_expected(self, host: str) -> bool:
        """Whether a host may have any address."""
        return host in self._trusted or (self._names_loopback and is_loopback(host))

    def _checked(self, url: str) -> URL:
        """The URL. Raises EndpointFailed if it may not be requested."""
        try:
            target = URL(url)
            host = target.host or ""
        except ValueError as error:
            raise EndpointFailed(f"{url[:200]!r} is no URL") from error
        if target.scheme != "https" and not (target.scheme == "http" and is_loopback(host) and self._is_expected(host)):
            raise EndpointFailed(f"{url[:200]} is not https")
        if target.user is not None or target.password is not None:
            raise EndpointFailed(f"{target.origin()} was named with credentials in the URL")
        if not self._is_expected(host) and is_address(host) and not is_public(host):
            raise EndpointFailed(f"{url[:200]} is at an address that is not public")
        return target


async def _read(response: aiohttp.ClientResponse) -> HttpAnswer:
    if 300 <= response.status < 400:
        raise EndpointFailed(f"{response.url} answered HTTP {response.status}, a redirect, which is not followed")
    body = b""
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER:
            raise EndpointFailed(f"{response.url} answered with more than {MAX_ANSWER} bytes")
    challenge = ", ".join(response.headers.getall("WWW-Authenticate", [])) or None
    return HttpAnswer(response.status, body, response.content_type, challenge)
