"""Settings of `credentials` of an upstream: which headers of a client's request are passed on with its calls.

No header is forwarded by default (R40), and a header that authenticates the caller to the gateway never is.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from mcproxy.settings.access.authentication import Authentication, HeaderName
from mcproxy.settings.section import InvalidKey, Section, worded

ForwardedHeader = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*(: *[\x20-\x7a|~]*\{\}[\x20-\x7a|~]*)?$", max_length=256),
    worded("should be a header, or a header and its value with {} for the client's: 'Authorization: Bearer {}'"),
]
"""The upstream's header: its name, or its name and a template of its value, `Authorization: Bearer {}`."""

_NOT_FORWARDED: Final = re.compile(
    r"cookie2?|host|origin|connection|keep-alive|te|trailer|transfer-encoding|upgrade|expect|accept.*|content-.*"
    r"|last-event-id|proxy-.*|mcp-.*|forwarded|x-forwarded-.*|traceparent|tracestate|baggage",
    re.IGNORECASE,
)
"""Headers that concern a single hop, or identify it (RFC 9110, section 7.6.1)."""


class CredentialSettings(Section):
    """Credentials that callers bring for this upstream themselves (HTTP alone).

    A caller that lacks one of the headers cannot call the upstream. A connection made with them is never shared.
    """

    forward: dict[HeaderName, ForwardedHeader] = Field(default_factory=dict)
    """The upstream's header by the name of the client's, with a template where needed: {X-GitHub-Token: 'Authorization:
    Bearer {}'}
    """

    def missing(self, present: Iterable[str]) -> list[str]:
        """The headers that a request lacks; `present` are the names of its own, in lower case."""
        there = set(present)
        return [header for header in self.forward if header.lower() not in there]

    def fields(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The upstream's headers for a request that lacks none of its own; `headers` has names in lower case."""
        return dict(_upstream_header(template, headers[header.lower()]) for header, template in self.forward.items())

    def consumed(self, authentication: Authentication) -> str | None:
        """A forwarded header that authenticates callers to the gateway, if any."""
        forwarded = authentication.forwarded
        own = [authentication.key_header] if authentication.key_header else []
        own += ["Authorization"] if authentication.required else []
        own += [forwarded.user_header, forwarded.roles_header or ""] if forwarded.trusted else []
        names = {name.lower() for name in own}
        return next((header for header in self.forward if header.lower() in names), None)

    @model_validator(mode="after")
    def _headers_may_go_on(self) -> Self:
        targets = {header: template.partition(":")[0] for header, template in self.forward.items()}
        for key, target in targets.items():
            for header in (key, target):
                if _NOT_FORWARDED.fullmatch(header):
                    sentence = f"{header} belongs to a single connection and cannot be forwarded"
                    raise InvalidKey(sentence, "forward", key)
        for headers in ({key: key for key in targets}, targets):
            seen: set[str] = set()
            for key, header in headers.items():
                if header.lower() in seen:
                    raise InvalidKey(f"names the header {header} twice", "forward", key)
                seen.add(header.lower())
        return self


def _upstream_header(forwarded: str, value: str) -> tuple[str, str]:
    header, _, template = forwarded.partition(":")
    return header, template.strip().replace("{}", value) if template else value
