"""Records of the gateway's logins at upstreams: each login, token request, refresh and revocation.

A record says whose grant it is, at which upstream and with which result; it holds no byte of a token, a code or a
secret (requirement R44).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec


class GrantAction(Enum):
    """The action on a grant; the values are part of the audit's `event`."""

    LOGIN = "login"
    """A person logged in."""
    TAKEN_OVER = "login taken over"
    """The gateway began to use a login that another process made, as `mcproxy login` does."""
    REQUEST = "token request"
    """The gateway requested a token for itself, or for a caller, without a person."""
    REFRESH = "refresh"
    REVOCATION = "revocation"
    """A grant was revoked at its issuer, and forgotten."""
    FORGOTTEN = "grant forgotten"
    """Another process removed the grant from the store, as `mcproxy logout` does."""


class GrantOutcome(Enum):
    """The outcome of an action on a grant; the values are the audit's `outcome`."""

    OK = "ok"
    REFUSED = "refused"
    """Final: a repetition would be refused too."""
    UNAVAILABLE = "unavailable"
    """Not final: no answer came, or the store could not be written."""


class GrantRecord(msgspec.Struct, frozen=True):
    """One action and its outcome. `at` is a Unix time in seconds."""

    at: float
    action: GrantAction
    outcome: GrantOutcome
    upstream: str
    principal: str
    """The name of the principal that owns the grant; empty for the gateway's own, which serves all callers."""
    issuer: str
    subject: str | None = None
    """The person who logged in, as named in the issuer's identity token; None without one."""
    why: str | None = None
    """The reason of a failure; the words may come from an authorization server."""


RecordGrant = Callable[[GrantRecord], None]
"""Takes a record. Never blocks."""


def unrecorded(record: GrantRecord) -> None:
    """A `RecordGrant` that keeps nothing: a command has no audit log."""
