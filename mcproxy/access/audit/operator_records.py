"""What the audit keeps of operators: who restarted which upstream, changed the log level, and the like."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class OperatorRecord(msgspec.Struct, frozen=True):
    """One action of an operator. `at` is a Unix time in seconds."""

    at: float
    principal: str
    """Who did it; `the control socket` for commands on the machine itself."""
    action: str
    subject: str
    """The upstream, or the new level."""


RecordAction = Callable[[OperatorRecord], None]
"""Keeps a record. Never blocks."""
