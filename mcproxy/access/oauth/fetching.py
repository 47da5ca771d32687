"""Fetch small JSON documents of OAuth issuers over HTTPS (R43). Sends no credential.

Redirects are followed within one origin, and each URL on the way is checked like the first.

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
from mcproxy.egress.redirects import MAX_REDIRECTS, REDIRECTS, RedirectRefused, next_hop
from mcproxy.settings.loopback import is_loopback


class FetchFailed(Exception):
    """Nothing readable was fetched. The text says what and why, for operators."""


class Fetch(Protocol):
    """Fetches a document of an issuer."""

    async def __call__(self, url: str, keys_max_bytes: int, *, public: bool = False) -> bytes:
        """The body of a GET, of at most so many bytes; `public` addresses alone, where that is asked.

        The caller bounds the time. Raises FetchFailed.
        """


async def fetch(url: str, keys_max_bytes: int, *, public: bool = False, egress: Egress | None = None) -> bytes:
    """As `Fetch`; `egress` says how, and by default the environment."""
    target = URL(url)
    client = OutgoingClient(egress or from_environment(os.environ), public=public)
    try:
        for _ in range(MAX_REDIRECTS + 1):
            _check(target, public=public)
            async with client.request("GET", target, {"Accept": "application/json"}) as response:
                if response.status not in REDIRECTS:
                    return await _read(str(target), response, keys_max_bytes)
                target = next_hop("GET", target, response.status, response.head.fields.get("location"))
    except (NotAnswered, ValueError) as error:
        raise FetchFailed(f"{url}: {error}") from error
    except RedirectRefused as refused:
        raise FetchFailed(str(refused)) from refused
    raise FetchFailed(f"{url} redirects more than {MAX_REDIRECTS} times")


async def _read(url: str, response: OutgoingResponse, keys_max_bytes: int) -> bytes:
    if response.status != 200:
        raise FetchFailed(f"{url} answered HTTP {response.status}")
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
