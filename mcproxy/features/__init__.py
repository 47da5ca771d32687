"""The list of features, one line each. A feature is one folder here; `mcproxy.gateway.feature` says what it may do.

Stages at the same place follow the order of this list, and so do events. A feature that the settings do not turn on is
not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from mcproxy.gateway.feature import Core, Feature, Listed
from mcproxy.settings import Settings
from mcproxy.settings.installed import installed_feature

FEATURES: Final = (
    Listed("pins", "pins.feature:Pins", lambda s: True),
    Listed("remembering", "remembering.feature:Remembering", lambda s: s.proxy.remember_lists),
    Listed("tracing", "tracing.feature:CallTracing", lambda s: s.proxy.tracing.enabled),
    Listed("search", "search.feature:Search", lambda s: any(e.discovery == "search" for e in s.endpoints.values())),
    Listed("limits", "limits.feature:CallLimits", lambda s: True),
    Listed("hooks", "hooks.feature:CallHooks", lambda s: bool(s.access.hooks)),
    Listed("approvals", "approvals.feature:CallApprovals", lambda s: True),
    Listed("results", "results.limiting:ResultLimits", lambda s: any(spec.limits_results for spec in s.upstreams)),
)


class _Installed(Listed, frozen=True):
    """A feature from another package, found by its entry point."""

    def load(self) -> Callable[[Core], Feature]:
        found: Callable[[Core], Feature] = installed_feature(self.name).load()
        return found


def features_of(settings: Settings) -> Sequence[Listed]:
    """All features; those from other packages, named in `settings.features`, come last."""
    return (*FEATURES, *(_Installed(name, "", lambda settings: True) for name in settings.features))
