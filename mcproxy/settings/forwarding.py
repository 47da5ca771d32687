"""What can be said of the credentials that callers bring for an upstream: which of their headers go with their calls.

Nothing goes by itself (requirement R40), and what says who a caller is to the gateway never does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

from pydantic import Field, model_validator

from mcproxy.settings.access.authentication import Authentication, HeaderName
from mcproxy.settings.section import Section

Onward = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*(: *[\x20-\x7a|~]*\{\}[\x20-\x7a|~]*)?$", max_length=256)
]
"""A header, and where it is not the value alone, what the header holds: `Authorization: Bearer {}`."""

_NOT_FORWARDED: Final = re.compile(
    r"cookie2?|host|origin|connection|keep-alive|te|trailer|transfer-encoding|upgrade|expect|accept.*|content-.*"
    r"|last-event-id|proxy-.*|mcp-.*|forwarded|x-forwarded-.*|traceparent|tracestate|baggage",
    re.IGNORECASE,
)
"""Headers that belong to one hop, or that say who or what that hop is (RFC 9110, section 7.6.1)."""


class CredentialSettings(Section):
    """What of a caller's own request goes to an upstream over HTTP with its calls, so that this knows who asks.

    Who does not bring all of it cannot call the upstream. A connection that is made with it is shared with nobody.
    """

    forward: dict[HeaderName, Onward] = Field(default_factory=dict)
    """By a header of the client's request: the upstream's header that it becomes, as `Authorization: Bearer {}`."""

    def missing(self, brought: Iterable[str]) -> list[str]:
        """The headers that a request lacks which has those of the names in `brought`, in lower case."""
        there = set(brought)
        return [header for header in self.forward if header.lower() not in there]

    def fields(self, brought: Mapping[str, str]) -> dict[str, str]:
        """The upstream's headers, of a request that lacks none."""
        return dict(_onward(onward, brought[header.lower()]) for header, onward in self.forward.items())

    def consumed(self, authentication: Authentication) -> str | None:
        """A header that is forwarded, though it is how callers show the gateway who they are."""
        forwarded = authentication.forwarded
        own = [authentication.key_header] if authentication.key_header else []
        own += ["Authorization"] if authentication.required else []
        own += [forwarded.user_header, forwarded.roles_header or ""] if forwarded.trusted else []
        names = {name.lower() for name in own}
        return next((header for header in self.forward if header.lower() in names), None)

    @model_validator(mode="after")
    def _headers_may_go_on(self) -> CredentialSettings:
        targets = [onward.partition(":")[0] for onward in self.forward.values()]
        for header in (*self.forward, *targets):
            if _NOT_FORWARDED.fullmatch(header):
                raise ValueError(f"names {header}, which belongs to one connection and goes no further")
        for headers in (list(self.forward), targets):
            if len({header.lower() for header in headers}) < len(headers):
                raise ValueError("names one header twice")
        return self


def _onward(onward: str, value: str) -> tuple[str, str]:
    header, _, template = onward.partition(":")
    return header, template.strip().replace("{}", value) if template else value
