"""The feature `tracing`: a span for each call that a client makes, and within it one for each call to an upstream."""

from __future__ import annotations

from collections.abc import Iterable

from mcproxy.concurrency.retirement import Retirable
from mcproxy.features.tracing.spans import Tracing, provider
from mcproxy.gateway.feature import Core, Feature, Place, Placed, PlacedUpstream


class CallTracing(Feature):
    """Records calls as spans. Its settings need a restart, so a reload keeps the provider and its queue."""

    name = "tracing"

    def __init__(self, core: Core, tracing: Tracing | None = None) -> None:
        proxy = core.settings.proxy
        self._settings = proxy.tracing
        self._label = core.resolver.label
        self._tracing = tracing or Tracing(provider(proxy.tracing, proxy.name), core.sealer.digest)

    def adopt(self, previous: CallTracing) -> None:
        self._tracing = previous._tracing

    def stages(self) -> Iterable[Placed]:
        return [Placed(Place.OBSERVE, "records a server span", self._tracing.served(self._label))]

    def upstream_stages(self) -> Iterable[PlacedUpstream]:
        return [PlacedUpstream(Place.SEND, "records a client span, and passes its context on", self._tracing.sent)]

    def resources(self) -> Iterable[Retirable]:
        return [self._tracing]

    async def run(self) -> None:
        """Starts sending spans to the collector."""
        self._tracing.export(self._settings)
