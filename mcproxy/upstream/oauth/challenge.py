"""The Bearer challenge in `WWW-Authenticate` (RFC 6750, RFC 9728): a server's demand upon refusing a request."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_HEADER: Final = 8 * 1024
"""Characters of `WWW-Authenticate` above which the header is ignored."""

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PART: Final = re.compile(
    rf"""\s*(?:
        (?P<name>{_TOKEN})[ \t]*=[ \t]*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s,"=]+))(?![^\s,])
      | (?P<scheme>{_TOKEN})(?:[ \t]+(?P<token68>[A-Za-z0-9._~+/-]+=*)(?=[ \t]*(?:,|$)))?(?=[\s,]|$)
    )[ \t]*,?""",
    re.VERBOSE,
)
"""One parameter of a challenge, or the scheme that begins the next (RFC 9110, section 11.6.1)."""
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""A scope (RFC 6749, section 3.3). Others cannot be requested, and could harm the terminal that shows them."""


class BearerChallenge(NamedTuple):
    """The parameters of a Bearer challenge; each may be absent."""

    resource_metadata: str | None = None
    """The URL of the protected resource's metadata (RFC 9728, section 5.1)."""
    scopes: tuple[str, ...] = ()
    """The scopes that the request needs."""
    error: str | None = None
    """`invalid_token`, `insufficient_scope` or another code (RFC 6750, section 3.1)."""

    @property
    def wants_more_scopes(self) -> bool:
        return self.error == "insufficient_scope"


def bearer_challenge(header: str | None) -> BearerChallenge | None:
    """The first Bearer challenge in a header; None if there is none."""
    if header is None or len(header) > MAX_HEADER:
        return None
    found: dict[str, str] | None = None
    position = 0
    while position < len(header):
        part = _PART.match(header, position)
        if part is None or part.end() == position:
            break
        position = part.end()
        if part["scheme"] is not None:
            if found is not None:
                break
            found = {} if part["scheme"].lower() == "bearer" else None
        elif found is not None:
            quoted = part["quoted"]
            value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else part["plain"]
            found.setdefault(part["name"].lower(), value)
    if found is None:
        return None
    scopes = tuple(scope for scope in found.get("scope", "").split() if _SCOPE.fullmatch(scope))
    return BearerChallenge(found.get("resource_metadata"), scopes, found.get("error"))
