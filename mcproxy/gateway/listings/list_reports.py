"""What operators are told of upstreams' lists as they were fetched: metrics, and warnings in the log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import structlog

from mcproxy.call.identity import AGGREGATE
from mcproxy.catalog.naming import RefusedEntry
from mcproxy.catalog.views.snapshots import Listing
from mcproxy.gateway.listings.exposures import Showing
from mcproxy.gateway.listings.keys import ListKey
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.protocol.methods import Kind
from mcproxy.telemetry.metrics import Metrics

log = structlog.get_logger()

MAX_NAMED: Final = 50
"""Entries of one list that are named in the log, one a line; the others are counted in one more."""


class ListReports:
    """Reports the lists in the catalogue to operators."""

    def __init__(self, catalogue: Catalogue, metrics: Metrics) -> None:
        self._catalogue = catalogue
        self._metrics = metrics

    def measure(self, key: ListKey, listing: Listing) -> None:
        """Sets the metrics of a list over a shared link; links with an owner have none."""
        if key.link.owner is None:
            labels = key.link.upstream, key.kind.value
            self._metrics.entries.labels(*labels).set(len(listing.entries))
            self._metrics.list_bytes.labels(*labels).set(sum(len(entry.data) for entry in listing.entries))
            self._metrics.hidden_entries.labels(*labels).set(len(self._hidden(key)))

    def warn(self, key: ListKey) -> None:
        """Logs the entries that are hidden, and those that are shown without approval."""
        refused = dict.fromkeys(self._hidden(key))
        _warn_of(list(refused), "an entry is not shown")
        unapproved = self._catalogue.vetted.unapproved(*key)
        _warn_of([entry for entry in unapproved if entry not in refused], "an entry is shown, and not approved")

    def showings(self, kind: Kind) -> list[Showing]:
        """What is reported on: what all callers of both eras are shown."""
        eras = (False, True) if kind is Kind.TOOLS else (False,)
        return [Showing(AGGREGATE, handshake=handshake) for handshake in eras]

    def _hidden(self, key: ListKey) -> tuple[RefusedEntry, ...]:
        """The entries of a known list that no caller, or no handshake client, is shown."""
        refused = (self._catalogue.exposures.of(key, showing).refused for showing in self.showings(key.kind))
        return tuple(dict.fromkeys(chain.from_iterable(refused)))


def _warn_of(entries: Sequence[RefusedEntry], what: str) -> None:
    for entry in entries[:MAX_NAMED]:
        log.warning(what, upstream=entry.upstream, list=entry.kind.value, name=entry.name, why=entry.why)
    if len(entries) > MAX_NAMED:
        log.warning(what, upstream=entries[0].upstream, list=entries[0].kind.value, others=len(entries) - MAX_NAMED)
