"""Links to the page where a principal logs in at an upstream: sealed, expiring, and of no use to another principal.

The link authenticates no one (2025-11-25, elicitation, "Safe URL Handling"): it names who has to log in, and the page
demands proof. Nothing is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from mcproxy.sealing import Sealer, Unsealable

CONNECT_PATH: Final = "/oauth/connect/"
LINK_LIFE: Final = 3600.0
"""Seconds for which a link is valid."""
_PURPOSE: Final = "login link"


class ConnectLink(msgspec.Struct, frozen=True, array_like=True):
    """The content of a link."""

    upstream: str
    principal: str
    """The principal that has to log in; empty for the gateway's own login, which serves all callers."""
    issuer: str | None
    """The authorization server, if known when the link was made: no other may take its place."""
    expires: float
    """A Unix time in seconds."""


class InvalidLink(Exception):
    """A link that this gateway did not make, or that has expired. The text says which."""


_links = msgspec.json.Decoder(ConnectLink)


class ConnectLinks:
    """`clock` is the Unix time in seconds."""

    def __init__(self, sealer: Sealer, clock: Callable[[], float] = time.time) -> None:
        self._sealer = sealer
        self._clock = clock

    def path(self, upstream: str, principal: str, issuer: str | None = None) -> str:
        """The path of a new link."""
        link = ConnectLink(upstream, principal, issuer, self._clock() + LINK_LIFE)
        return CONNECT_PATH + self._sealer.seal(_PURPOSE, msgspec.json.encode(link))

    def open(self, sealed: str) -> ConnectLink:
        """The content of a link. Raises InvalidLink."""
        try:
            link = _links.decode(self._sealer.open(_PURPOSE, sealed))
        except (Unsealable, msgspec.DecodeError) as error:
            raise InvalidLink("this link is not one that the gateway gave") from error
        if link.expires <= self._clock():
            raise InvalidLink("this link has expired")
        return link
