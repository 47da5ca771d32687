"""Refused credentials: counted by reason, and written to log and audit within bounds (requirement R88).

A client that guesses keys must fill neither: for each reason, each gets at most one entry a second, which says how many
refusals since the last entry had none. Requests without credentials are only counted, since every OAuth client begins
with one. Decides nothing, and keeps nothing of the credentials.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec
import structlog

from mcproxy.telemetry.metrics import Metrics

log = structlog.get_logger()

INTERVAL: Final = 1.0
"""Seconds between two entries for the same reason."""


class RefusalReason(Enum):
    """Why credentials were refused; the values are a label of metrics (R52)."""

    MISSING = "missing"
    """No credentials were shown."""
    SEVERAL = "several"
    """More than one credential was shown."""
    MALFORMED = "malformed"
    """Neither a key nor a readable token."""
    UNKNOWN_KEY = "unknown_key"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    UNTRUSTED_ISSUER = "untrusted_issuer"
    SIGNATURE = "signature"
    """Signed by no key of the issuer, or in a way that is not accepted."""
    AUDIENCE = "audience"
    SCOPE = "scope"
    NAME = "name"
    """Its claims name no unambiguous caller."""
    ISSUER_UNAVAILABLE = "issuer_unavailable"


class RefusedCredentials(msgspec.Struct, frozen=True):
    """One refusal to be written. `at` is a Unix time in seconds; `peer` an address, if there is one."""

    at: float
    reason: RefusalReason
    sentence: str
    peer: str | None
    unwritten: int
    """Refusals for the same reason since the last one that was written."""


class Refusals:
    """`record` writes to the audit. `clock` is monotonic, `wall` the Unix time; both in seconds."""

    def __init__(
        self,
        metrics: Metrics,
        record: Callable[[RefusedCredentials], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._counts = metrics.refused_credentials
        self._record = record
        self._clock = clock
        self._wall = wall
        self._last: dict[RefusalReason, tuple[float, int]] = {}
        """By reason: when a refusal was last written, and how many there were since."""

    def count(self, reason: RefusalReason, sentence: str, peer: str | None) -> None:
        """Never blocks."""
        self._counts.labels(reason.value).inc()
        if reason is RefusalReason.MISSING:
            return
        now = self._clock()
        written, since = self._last.get(reason, (-INTERVAL, 0))
        if now - written < INTERVAL:
            self._last[reason] = (written, since + 1)
            return
        self._last[reason] = (now, 0)
        log.warning("credentials refused", reason=reason.value, why=sentence, peer=peer, unlogged=since)
        self._record(RefusedCredentials(self._wall(), reason, sentence, peer, since))
