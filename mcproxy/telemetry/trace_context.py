"""W3C trace context of the HTTP request being served and of those sent on its behalf; empty without tracing.

In `_meta` the same names are reserved for it, on every transport (2026-07-28, basic, "_meta").
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

FIELDS: Final = ("traceparent", "tracestate", "baggage")

Carrier = Mapping[str, str]

NOTHING: Final[Carrier] = MappingProxyType({})

arrived: Final[ContextVar[Carrier]] = ContextVar("arrived", default=NOTHING)
"""The trace context of the HTTP request that is being served."""

departing: Final[ContextVar[Carrier]] = ContextVar("departing", default=NOTHING)
"""The trace context for HTTP requests that are sent on its behalf."""


def picked(fields: Mapping[str, str]) -> Carrier:
    """The trace context in a request's headers."""
    return {name: fields[name] for name in FIELDS if name in fields}
