"""Settings of further endpoints (`endpoints`): each shows a part of the upstreams at `/mcp/NAME`."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from mcproxy.settings.access.policy import Selection
from mcproxy.settings.section import Glob, InvalidKey, Positive, Section, Whole, worded

MARK: Final = "/"
"""Precedes the name in an endpoint's key, so that it is no upstream's name."""

NAME: Final = "[a-z0-9][a-z0-9_-]{0,63}"
NAME_RULE: Final = (
    "the name of an endpoint should be lower-case letters, digits, _ and -, a letter or digit first, at most 64"
)
EndpointName = Annotated[str, Field(pattern=f"^{NAME}$"), worded(NAME_RULE)]


class SearchSettings(Section):
    """What a search of tools gives (`endpoints.NAME.search`)."""

    results: Annotated[Whole, Field(gt=0, le=50)] = 10
    """Tools that a search gives, where the model asks for no other number."""
    max_tokens: Positive = 1500
    """Tokens of one search's result, estimated as bytes by four; further tools are left out, and counted."""


class Endpoint(Selection):
    """A named selection of the upstreams' entries, served at `/mcp/NAME` and `/sse/NAME`."""

    roles: tuple[str, ...] = ()
    """Roles of which a caller needs one to see that the endpoint exists; none: every caller sees it."""
    discovery: Literal["list", "search"] = "list"
    """`search`: tools are not listed; five tools of the gateway's own find, describe and call them."""
    pinned: tuple[Glob, ...] = ()
    """With `discovery: search`: globs of the tools that are listed all the same, by the names that callers see."""
    search: SearchSettings = SearchSettings()
    """With `discovery: search`: what a search gives."""

    @model_validator(mode="after")
    def _searches_where_it_pins(self) -> Self:
        if self.pinned and self.discovery != "search":
            raise InvalidKey("all tools are listed: pinned needs discovery: search", "pinned")
        return self


def key_of(name: str) -> str:
    """The endpoint's key in `call.identity.Caller.endpoint`, which no upstream's name equals."""
    return MARK + name


def is_key(name: str) -> bool:
    """Whether a name is the key of an endpoint, and not an upstream's name."""
    return name.startswith(MARK)
