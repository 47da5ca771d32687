"""What upstreams offer over their shared links, beside what `access.pins` has approved: for operators, and counted.

Hides nothing itself: the catalogue leaves out what must be approved and is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from mcproxy.access.pins import approved
from mcproxy.catalog.naming import RefusedEntry
from mcproxy.configuration.lock import PINNED
from mcproxy.gateway.component import Component, Reconfiguration
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.protocol.methods import Kind
from mcproxy.settings.access.pins import Approved
from mcproxy.telemetry.metrics import Metrics


class Approvals(Component):
    """`upstreams` are the names of those that are enabled."""

    def __init__(self, catalogue: Catalogue, upstreams: Iterable[str], metrics: Metrics) -> None:
        self._catalogue = catalogue
        self._metrics = metrics
        self._watch(upstreams)

    def reconfigure(self, change: Reconfiguration) -> None:
        self._watch(change.upstreams)

    def unapproved(self) -> list[RefusedEntry]:
        """What is offered, and is not as it was approved."""
        return [entry for name in self._upstreams for kind in Kind for entry in self._unapproved(name, kind)]

    def offered(self) -> dict[str, Approved | None]:
        """What upstreams offer now, each as it would be approved; None for one whose lists are not known."""
        return {name: self._offered(LinkKey(name, None)) for name in self._upstreams}

    def _unapproved(self, upstream: str, kind: Kind) -> tuple[RefusedEntry, ...]:
        return self._catalogue.unapproved(LinkKey(upstream, None), kind)

    def _offered(self, link: LinkKey) -> Approved | None:
        identity = self._catalogue.identity(link)
        listings = {kind: self._catalogue.listing(link, kind) for kind in PINNED}
        if identity is None or None in listings.values():
            return None
        entries = {kind: {e.key: e.data for e in listing.entries} for kind, listing in listings.items() if listing}
        return approved(identity.instructions, entries)

    def _watch(self, upstreams: Iterable[str]) -> None:
        """Has each scrape of the metrics count anew."""
        self._upstreams = tuple(upstreams)
        for name in self._upstreams:
            for kind in PINNED:
                count = partial(self._count, name, kind)
                self._metrics.pins_refused.labels(name, kind.value).set_function(count)
            instructions = self._metrics.pins_refused.labels(name, "instructions")
            instructions.set_function(partial(self._count_instructions, name))

    def _count(self, upstream: str, kind: Kind) -> int:
        return len(self._unapproved(upstream, kind))

    def _count_instructions(self, upstream: str) -> int:
        return not self._catalogue.has_approved_instructions(LinkKey(upstream, None))
