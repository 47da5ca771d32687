"""What the audit keeps of the gateway's logins at upstreams: each login, token request, refresh and revocation.

A record says who, where and what came of it, and holds no byte of a token, a code or a secret (requirement R44).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec


class GrantAction(Enum):
    """What was done; the values are part of the audit's `event`."""

    LOGIN = "login"
    """A person logged in."""
    TAKEN_OVER = "login taken over"
    """A login that another process made, as `mcproxy login` does, is used from now on."""
    REQUEST = "token request"
    """The gateway asked for a token for itself, or for a caller, without a person."""
    REFRESH = "refresh"
    REVOCATION = "revocation"
    """A grant was taken back at its issuer, and forgotten."""
    FORGOTTEN = "grant forgotten"
    """Another process took the grant out of the store, as `mcproxy logout` does."""


class GrantOutcome(Enum):
    """Whether an action with a grant was done; the value is what the audit log has as its `outcome`."""

    OK = "ok"
    REFUSED = "refused"
    """Decided: the same again would be refused too."""
    UNAVAILABLE = "unavailable"
    """Nothing was decided: no answer, or the store could not be written."""


class GrantRecord(msgspec.Struct, frozen=True):
    """One action, and what came of it. `at` is a Unix time in seconds."""

    at: float
    action: GrantAction
    outcome: GrantOutcome
    upstream: str
    principal: str
    """The name of the principal whose grant it is; empty for the gateway's own, which serves all callers."""
    issuer: str
    subject: str | None = None
    """Who logged in, as the issuer names them in an identity token; None where it gave none."""
    why: str | None = None
    """Why it came to nothing; an authorization server may have chosen the words."""


RecordGrant = Callable[[GrantRecord], None]
"""Keeps a record. Never blocks."""


def unrecorded(record: GrantRecord) -> None:
    """A `RecordGrant` that keeps nothing: a command has no audit log."""
