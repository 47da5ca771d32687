"""The table of `deploy/prometheus/METRICS.md`, from the instruments themselves.

`python -m tests.deploy.metrics_table` writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from mcproxy.admin.measures.collectors import ListSizeCollector, UpstreamCollector
from mcproxy.telemetry.fast_metrics import Tally
from mcproxy.telemetry.metrics import Metrics
from tests.deploy.needs import DEPLOY

FILE = DEPLOY / "prometheus/METRICS.md"
HEAD = "|---|---|---|---|\n"
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


if __name__ == "__main__":
    preamble, head, _ = FILE.read_text().partition(HEAD)
    FILE.write_text(preamble + head + "".join(f"{line}\n" for line in rows()))
