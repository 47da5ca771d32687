"""Settings of further endpoints (`endpoints`): each shows a part of the upstreams at `/mcp/NAME`."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from mcproxy.settings.access.policy import Selection

MARK: Final = "/"
"""Precedes the name in an endpoint's key, so that it is no upstream's name."""

NAME: Final = "[a-z0-9][a-z0-9_-]{0,63}"
EndpointName = Annotated[str, Field(pattern=f"^{NAME}$")]


class Endpoint(Selection):
    """A named selection of the upstreams' entries, served at `/mcp/NAME` and `/sse/NAME`."""

    roles: tuple[str, ...] = ()
    """Roles of which a caller needs one to see that the endpoint exists; none: every caller sees it."""


def key_of(name: str) -> str:
    """The endpoint's key in `call.identity.Caller.endpoint`, which no upstream's name equals."""
    return MARK + name


def is_key(name: str) -> bool:
    """Whether a name is the key of an endpoint, and not an upstream's name."""
    return name.startswith(MARK)
