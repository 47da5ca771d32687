"""Refused credentials: counted by reason, and told to the log and the audit within bounds (requirement R88).

A client that guesses keys must fill neither: each gets at most one entry a second for each reason, which says how many
refusals came before it without one. Requests without credentials are counted alone, since every OAuth client begins
with one. Decides nothing, and holds nothing of what was shown.
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
    """None were shown."""
    SEVERAL = "several"
    """More than one was shown."""
    MALFORMED = "malformed"
    """No key, and no token that can be read."""
    UNKNOWN_KEY = "unknown_key"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    UNTRUSTED_ISSUER = "untrusted_issuer"
    SIGNATURE = "signature"
    """Signed by no key of the issuer, or in a way that is not accepted."""
    AUDIENCE = "audience"
    SCOPE = "scope"
    NAME = "name"
    """It names no caller that can be told from others."""
    ISSUER_UNAVAILABLE = "issuer_unavailable"


class RefusedCredentials(msgspec.Struct, frozen=True):
    """One refusal as it is written down. `at` is a Unix time in seconds; `peer` an address, where there is one."""

    at: float
    reason: RefusalReason
    sentence: str
    peer: str | None
    unwritten: int
    """Refusals for the same reason since the last one that was written."""


class Refusals:
    """`record` takes what goes into the audit. `clock` is steady, `wall` the Unix time; both in seconds."""

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
        """When a refusal for a reason was written, and how many there were since."""

    def note(self, reason: RefusalReason, sentence: str, peer: str | None) -> None:
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
