"""Fetch small JSON documents of OAuth issuers over HTTPS (R43). Follows no redirect, sends no credential.

URLs from the configuration may have any address. A URL in an issuer's metadata outside the issuer's own origin must
have a public address: a provider must not make the gateway connect to its own network.
"""

from __future__ import annotations

import os
from typing import Protocol

from yarl import URL

from mcproxy.egress.addresses import is_address, is_public
from mcproxy.egress.client import NotAnswered, OutgoingClient, OutgoingResponse
from mcproxy.egress.egress import Egress, from_environment
from mcproxy.settings.loopback import is_loopback


class FetchFailed(Exception):
    """Nothing readable was fetched. The text says what and why, for operators."""


class NotThere(FetchFailed):
    """The server says that the document does not exist."""


class Fetch(Protocol):
    """Fetches a document of an issuer."""

    async def __call__(self, url: str, keys_max_bytes: int, *, public: bool = False) -> bytes:
        """The body of a GET, of at most so many bytes; `public` addresses alone, where that is asked.

        The caller bounds the time. Raises FetchFailed, or NotThere.
        """


async def fetch(url: str, keys_max_bytes: int, *, public: bool = False, egress: Egress | None = None) -> bytes:
    """As `Fetch`; `egress` says how, and by default the environment."""
    target = URL(url)
    _check(target, public=public)
    client = OutgoingClient(egress or from_environment(os.environ), public=public)
    try:
        async with client.request("GET", target, {"Accept": "application/json"}) as response:
            return await _read(url, response, keys_max_bytes)
    except (NotAnswered, ValueError) as error:
        raise FetchFailed(f"{url}: {error}") from error


async def _read(url: str, response: OutgoingResponse, keys_max_bytes: int) -> bytes:
    if response.status in {404, 405, 410}:
        raise NotThere(f"{url} is not there: HTTP {response.status}")
    if response.status != 200:
        unfollowed = ", a redirect that is not followed" if 300 <= response.status < 400 else ""
        raise FetchFailed(f"{url} answered HTTP {response.status}{unfollowed}")
    body = await response.read(keys_max_bytes)
    if body is None:
        raise FetchFailed(f"{url} answered with more than {keys_max_bytes} bytes (oauth.keys_max_bytes)")
    return body


def _check(url: URL, *, public: bool) -> None:
    host = url.host or ""
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback(host) and not public):
        raise FetchFailed(f"{url} is not https")
    if public and is_address(host) and not is_public(host):
        raise FetchFailed(f"{url} is at an address that is not public")
