"""Records of operators' actions: who restarted which upstream, changed the log level, and the like."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class OperatorRecord(msgspec.Struct, frozen=True):
    """One action of an operator. `at` is a Unix time in seconds."""

    at: float
    principal: str
    """The operator; `the control socket` for commands on the machine itself."""
    action: str
    subject: str
    """The upstream, or the new level."""


RecordAction = Callable[[OperatorRecord], None]
"""Takes a record. Never blocks."""
