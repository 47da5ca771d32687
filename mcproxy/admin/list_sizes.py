"""What the lists of each endpoint weigh, told to whoever scrapes: models read every byte of them. Counted when asked.

Of the view of who may use everything: those of single callers are no more than it, and too many for labels (R52).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mcproxy.catalog.merging import View


class ListSizeCollector(Collector):
    """`views` gives each endpoint's path, and what it shows."""

    def __init__(self, views: Callable[[], Iterable[tuple[str, View]]]) -> None:
        self._views = views

    def describe(self) -> Iterator[Metric]:
        yield _family()

    def collect(self) -> Iterator[Metric]:
        family = _family()
        for path, view in self._views():
            for kind, entries in view.lists.items():
                family.add_metric([path, kind.value], sum(len(shown.entry) for shown in entries))
        yield family


def _family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "mcproxy_view_bytes",
        "Bytes of the entries that an endpoint shows to who may use everything; about four are a token.",
        labels=("endpoint", "kind"),
    )
