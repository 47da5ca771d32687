"""The table of all metrics lists every instrument, and no other."""

from __future__ import annotations

from tests.deploy.metrics_table import FILE, HEAD, rows


def test_r52_every_metric_is_in_the_table_with_its_type_labels_and_meaning() -> None:
    table = FILE.read_text().partition(HEAD)[2]
    assert table.splitlines() == list(rows()), "write it anew: python -m tests.deploy.metrics_table"
