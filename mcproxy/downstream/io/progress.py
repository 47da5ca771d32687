"""The reports of one request's progress as a single series that rises, though an upstream may begin more than once.

A request whose upstream asks for input, or whose connection is lost, may be sent again, and is then reported on from
the start, to a client that sees one request. Pure.
"""

from __future__ import annotations

import math
import sys
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.jsonrpc import Params, raw

_PROGRESS: Final = "progress"
_TOTAL: Final = "total"
_EMPTY: Final = Raw()

_number = msgspec.json.Decoder(int | float)


class ProgressSeries:
    """progress: "The `progress` value MUST increase with each notification, even if the total is unknown"."""

    __slots__ = ("_last", "_offset", "_reached")

    def __init__(self) -> None:
        self._last: float = -math.inf
        """The progress in the last report, as it came."""
        self._offset: float | None = None
        """What was reached before the upstream began anew; None where it did not."""
        self._reached: float = 0
        """The progress that the client was told last."""

    def continued(self, report: Params) -> Params | None:
        """A report as the client gets it: one of less than the last begins anew, on top of what was reached.

        None for one that says no more than the client knows. A report without numbers passes.
        """
        said = _read(report, _PROGRESS)
        if said is None:
            return report
        if said < self._last:
            self._offset = self._reached
        self._last = said
        if self._offset is None:
            self._reached = said
            return report
        progress, total = self._offset + said, _read(report, _TOTAL)
        if not self._reached < progress < math.inf:
            return None
        self._reached = progress
        continued = {**report, _PROGRESS: raw(progress)}
        if total is not None:
            continued[_TOTAL] = raw(min(self._offset + total, sys.float_info.max))
        return continued


def _read(report: Params, key: str) -> float | None:
    """The number at `key`; None where there is none, or none that can be added to."""
    try:
        number = _number.decode(report.get(key, _EMPTY))
        return number if math.isfinite(number) else None
    except (msgspec.MsgspecError, ValueError, OverflowError):
        return None
