"""What can be said of an endpoint beside `/mcp` that shows a part of what is behind the gateway, to some callers."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from mcproxy.settings.access.policy import Selection

MARK: Final = "/"
"""What the keys of these endpoints begin with, among those of all endpoints."""

NAME: Final = "[a-z0-9][a-z0-9_-]{0,63}"
EndpointName = Annotated[str, Field(pattern=f"^{NAME}$")]


class Endpoint(Selection):
    """A named selection, served at `/mcp/NAME` and `/sse/NAME`."""

    roles: tuple[str, ...] = ()
    """Who may see that it exists: holders of one of these roles; where none is given, everybody."""


def key_of(name: str) -> str:
    """The endpoint's key (`call.identity.Caller.endpoint`): no name of an upstream."""
    return MARK + name
