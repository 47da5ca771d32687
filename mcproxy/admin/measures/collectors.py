"""Prometheus collectors of upstreams' states and of list sizes, read when scraped: nothing is stored.

Error texts are no labels: they may contain anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from mcproxy.call.upstreams import LinkState, UpstreamStatus
from mcproxy.catalog.views.view import View


class UpstreamCollector(Collector):
    """State, identity and failure of each upstream."""

    def __init__(self, statuses: Callable[[], Iterable[UpstreamStatus]]) -> None:
        self._statuses = statuses

    def describe(self) -> Iterator[Metric]:
        yield from _upstream_families()

    def collect(self) -> Iterator[Metric]:
        phases, identities, troubles, credentials = families = _upstream_families()
        for status in self._statuses():
            credentials.add_metric([status.name], status.takes_credentials)
            for phase in LinkState:
                phases.add_metric([status.name, phase.value], status.state is phase)
            if status.identity is not None:
                spoken = {"era": status.identity.era.value, "version": status.identity.version}
                identities.add_metric([status.name], {"transport": status.transport, **spoken})
            if status.failure is not None:
                troubles.add_metric([status.name], {"why": status.failure.value})
        yield from families


def _upstream_families() -> tuple[GaugeMetricFamily, InfoMetricFamily, InfoMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            "mcproxy_upstream_phase",
            "1 for the phase that the upstream is in: connecting, ready, idle, backing_off, draining or disabled.",
            labels=("upstream", "phase"),
        ),
        InfoMetricFamily(
            "mcproxy_upstream",
            "Transport of the upstream, and era and protocol version of its last connection.",
            labels=("upstream",),
        ),
        InfoMetricFamily(
            "mcproxy_upstream_trouble",
            "Why the upstream is not connected, as in mcproxy_upstream_troubles_total; absent while it is.",
            labels=("upstream",),
        ),
        GaugeMetricFamily(
            "mcproxy_upstream_takes_credentials",
            "1 if callers bring credentials of their own: the shared connection has none and may be refused.",
            labels=("upstream",),
        ),
    )


class ListSizeCollector(Collector):
    """Bytes of each endpoint's lists, as shown to a caller without restrictions: models read every byte (R52).

    `views` yields each endpoint's path and view. Callers' own views are parts of it, and too many for labels.
    """

    def __init__(self, views: Callable[[], Iterable[tuple[str, View]]]) -> None:
        self._views = views

    def describe(self) -> Iterator[Metric]:
        yield from _list_sizes()

    def collect(self) -> Iterator[Metric]:
        sizes, unlisted = families = _list_sizes()
        for path, view in self._views():
            for kind, entries in view.lists.items():
                sizes.add_metric([path, kind.value], sum(len(shown.entry) for shown in entries))
            if view.layout.search is not None:
                unlisted.add_metric([path], sum(len(shown.entry) for shown in view.unlisted))
        yield from families


def _list_sizes() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            "mcproxy_view_bytes",
            "Bytes of the entries that an endpoint shows to a caller without restrictions; about four are a token.",
            labels=("endpoint", "kind"),
        ),
        GaugeMetricFamily(
            "mcproxy_view_unlisted_bytes",
            "Bytes of the tools that an endpoint leaves to be found by search; without it they would be listed.",
            labels=("endpoint",),
        ),
    )
