"""The known lists without the definitions that must be approved and are not (`access.pins`, requirement R45).

`access.pins` decides what is approved; this caches its verdicts for as long as a list is the same. Knows no caller.
"""

from __future__ import annotations

from mcproxy.access.pins import Pins
from mcproxy.catalog.naming import RefusedEntry
from mcproxy.catalog.skills import withheld_files
from mcproxy.catalog.views.snapshots import Listing
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.known_links import KnownLinks
from mcproxy.protocol.methods import Kind


class VettedLists:
    """Vets the current lists in `known`."""

    def __init__(self, known: KnownLinks, pins: Pins) -> None:
        self._known = known
        self._pins = pins
        self.enforced = pins.enforced
        """Whether unapproved entries are hidden."""
        self._vetted: dict[tuple[LinkKey, Kind], tuple[Listing, Listing, tuple[RefusedEntry, ...]]] = {}
        self._withheld: dict[LinkKey, tuple[Listing, frozenset[str]]] = {}

    def reconfigure(self, pins: Pins) -> None:
        """Vets every list anew, by other pins."""
        self._pins = pins
        self.enforced = pins.enforced
        self._vetted.clear()
        self._withheld.clear()

    def forget(self, link: LinkKey) -> None:
        """Drops the verdicts on a link that is gone."""
        self._vetted = {key: kept for key, kept in self._vetted.items() if key[0] != link}
        self._withheld.pop(link, None)

    def listing(self, link: LinkKey, kind: Kind) -> Listing:
        """A known list, without the entries that lack a required approval."""
        return self._vet(link, kind)[0]

    def unapproved(self, link: LinkKey, kind: Kind) -> tuple[RefusedEntry, ...]:
        """The entries of a list that differ from what was approved, shown or not."""
        return self._vet(link, kind)[1] if self._known.listing(link, kind) is not None else ()

    def has_approved_instructions(self, link: LinkKey) -> bool:
        """False where the server's instructions lack a required approval."""
        identity = self._known.identity(link)
        return identity is None or self._pins.approves_instructions(link.upstream, identity.instructions)

    def withheld_files(self, link: LinkKey) -> frozenset[str]:
        """The files of a link's skills that lack a required approval, as readings of their URIs."""
        if not self.enforced:
            return frozenset()
        approved, unapproved = self._vet(link, Kind.SKILLS)
        if not unapproved:
            return frozenset()
        kept = self._withheld.get(link)
        if kept is None or kept[0] is not approved:
            names = {entry.name for entry in unapproved}
            listed = self._known.snapshots[link].lists[Kind.SKILLS].entries
            refused = (entry.data for entry in listed if entry.key in names)
            files = withheld_files(refused, (entry.data for entry in approved.entries))
            kept = self._withheld[link] = (approved, files)
        return kept[1]

    def _vet(self, link: LinkKey, kind: Kind) -> tuple[Listing, tuple[RefusedEntry, ...]]:
        """A known list without the entries that lack a required approval; and those entries."""
        listing = self._known.snapshots[link].lists[kind]
        kept = self._vetted.get((link, kind))
        if kept is None or kept[0] is not listing:
            kept = self._vetted[link, kind] = (listing, *_vet_listing(self._pins, link.upstream, kind, listing))
        return kept[1:]


def _vet_listing(pins: Pins, upstream: str, kind: Kind, listing: Listing) -> tuple[Listing, tuple[RefusedEntry, ...]]:
    """A list without the entries that lack a required approval; and all unapproved entries, required or not."""
    flaws = {entry.key: pins.flaw(upstream, kind, entry.key, entry.data) for entry in listing.entries}
    unapproved = tuple(RefusedEntry(upstream, kind, key, flaw) for key, flaw in flaws.items() if flaw is not None)
    if not unapproved or not pins.enforced:
        return listing, unapproved
    entries = tuple(entry for entry in listing.entries if flaws[entry.key] is None)
    return Listing(entries, (*listing.refused, *unapproved)), unapproved
