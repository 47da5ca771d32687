"""The features, one line each, in order. A feature is one folder here; `mcproxy.gateway.feature` says what it may do.

Stages of one place stand in the order of this list, and events reach features in it. What the settings do not ask for
is not imported.
"""

from __future__ import annotations

from typing import Final

from mcproxy.gateway.feature import Listed

FEATURES: Final = (
    Listed("tracing", "tracing.feature:CallTracing", lambda s: s.proxy.tracing.enabled),
    Listed("search", "search.feature:Search", lambda s: any(e.discovery == "search" for e in s.endpoints.values())),
    Listed("results", "results.limiting:ResultLimits", lambda s: any(spec.limits_results for spec in s.upstreams)),
)
