"""The table of all metrics says what there is, no less and no more."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from mcproxy.admin.collectors import ListSizeCollector, UpstreamCollector
from mcproxy.telemetry.fast_metrics import Tally
from mcproxy.telemetry.metrics import Metrics
from tests.deploy.needs import DEPLOY

SUFFIXES = {"counter": "_total", "info": "_info"}


def rows() -> Iterator[str]:
    """The table's lines, from what is registered."""
    metrics = Metrics()
    metrics.registry.register(UpstreamCollector(list))
    metrics.registry.register(ListSizeCollector(list))
    labels: dict[str, tuple[str, ...]] = {
        instrument.describe()[0].name: instrument.labelnames
        if isinstance(instrument, Tally)
        else instrument._labelnames
        for instrument in vars(metrics).values()
        if hasattr(instrument, "describe")
    }
    for family in metrics.registry.collect():
        yield row(family, labels.get(family.name, getattr(family, "_labelnames", ())))


def row(family: Metric, labels: tuple[str, ...]) -> str:
    name = family.name + SUFFIXES.get(family.type, "")
    named = ", ".join(f"`{label}`" for label in labels) or "–"
    return f"| `{name}` | {family.type} | {named} | {family.documentation} |"


def test_r52_every_metric_is_in_the_table_with_its_type_labels_and_meaning() -> None:
    table = (DEPLOY / "prometheus/METRICS.md").read_text().partition("|---|---|---|---|\n")[2]
    assert table.splitlines() == list(rows())
