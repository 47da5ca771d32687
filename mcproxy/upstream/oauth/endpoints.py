"""Requests to authorization servers: bounded, to permitted addresses only.

Redirects are followed within one origin, and each URL on the way is checked like the first.

URLs that an operator wrote (the upstream's, a pinned issuer's) may have any address. URLs that a server named must be
https at a public address, so that no server can make the gateway reach into its own network; but a server on loopback
may name others on loopback, over plain http (requirement R43).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

import anyio
from yarl import URL

from mcproxy.egress.addresses import is_address, is_public
from mcproxy.egress.client import NotAnswered, OutgoingClient, OutgoingResponse
from mcproxy.egress.egress import Egress, from_environment
from mcproxy.egress.redirects import MAX_REDIRECTS, REDIRECTS, RedirectRefused, next_hop
from mcproxy.settings.loopback import is_loopback
from mcproxy.upstream.oauth.leniency import Note, retry_after, unnoted

MAX_ANSWER: Final = 256 * 1024
"""Bytes of one answer."""
TIMEOUT: Final = 15.0
"""Seconds for one answer, including the connection."""


class EndpointFailed(Exception):
    """No answer, none that could be read, or a URL that may not be requested. The text says which and why."""


class NoAnswer(EndpointFailed):
    """No answer in time: another URL of the same host is not worth the same wait."""


class HttpAnswer(NamedTuple):
    """The whole answer of an endpoint, whatever its status."""

    status: int
    body: bytes
    challenge: str | None
    """The `WWW-Authenticate` header, its lines joined."""
    retry_after: float | None = None
    """Seconds to wait before the next request (`Retry-After`); None if the answer does not say."""


class Endpoints:
    """`trusted` are URLs that an operator wrote: their hosts may have any address. `egress` says how requests leave."""

    def __init__(self, trusted: tuple[str, ...], egress: Egress | None = None, note: Note = unnoted) -> None:
        self._note = note
        self._egress = from_environment(os.environ) if egress is None else egress
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
        target = self._checked(url)
        client = OutgoingClient(self._egress, public=not self._is_expected(target.host or ""), settings="tls")
        try:
            with anyio.fail_after(TIMEOUT):
                for _ in range(MAX_REDIRECTS + 1):
                    async with client.request(method, target, headers, body) as response:
                        if response.status not in REDIRECTS:
                            return await _read(str(target), response)
                        location = response.head.fields.get("location")
                        target = self._checked(str(next_hop(method, target, response.status, location)))
                        self._note("redirect", "redirects within its origin at an OAuth URL; followed")
        except TimeoutError as error:
            raise NoAnswer(f"{url[:200]} did not answer within {TIMEOUT:g} s") from error
        except (NotAnswered, ValueError) as error:
            raise EndpointFailed(f"{url[:200]}: {error}") from error
        except RedirectRefused as refused:
            raise EndpointFailed(str(refused)) from refused
        raise EndpointFailed(f"{url[:200]} redirects more than {MAX_REDIRECTS} times")

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


async def _read(url: str, response: OutgoingResponse) -> HttpAnswer:
    body = await response.read(MAX_ANSWER)
    if body is None:
        raise EndpointFailed(f"{url[:200]} answered with more than {MAX_ANSWER} bytes")
    fields = response.head.fields
    challenge = ", ".join(fields.all("www-authenticate")) or None
    return HttpAnswer(response.status, body, challenge, retry_after(fields.get("retry-after")))
