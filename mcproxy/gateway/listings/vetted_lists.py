"""The known lists without the definitions that must be approved and are not (`access.pins`, requirement R45).

`access.pins` decides what is approved; this caches its verdicts for as long as a list is the same. Knows no caller.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mcproxy.access.pins import Pins
from mcproxy.catalog.naming import RefusedEntry
from mcproxy.catalog.skills import withheld_files
from mcproxy.catalog.views.derived import Derived, deriving
from mcproxy.catalog.views.snapshots import Listing
from mcproxy.concurrency.turns import Steps, at_once
from mcproxy.gateway.listings.keys import LinkKey, ListKey
from mcproxy.gateway.listings.known_links import KnownLinks
from mcproxy.protocol.methods import Kind

PINNED_BYTES: Final = 10
"""A definition is hashed, which takes longer than to read so many of its length."""


class _Vetted(msgspec.Struct, frozen=True, eq=False):
    listing: Listing
    approved: Listing
    """The list without the entries that lack a required approval."""
    unapproved: tuple[RefusedEntry, ...]
    """All unapproved entries, required or not."""
    flaws: Derived[str | None]


class VettedLists:
    """Vets the current lists in `known`."""

    def __init__(self, known: KnownLinks, pins: Pins) -> None:
        self._known = known
        self._pins = pins
        self.enforced = pins.enforced
        """Whether unapproved entries are hidden."""
        self._vetted: dict[LinkKey, dict[Kind, tuple[_Vetted, ...]]] = {}
        """The verdicts on each known list, and on one that may take its place.

        The inner mappings go with their link, and all with the pins: work that goes on in turns leaves what it made
        where nobody looks.
        """
        self._withheld: dict[LinkKey, tuple[_Vetted, frozenset[str]]] = {}

    def reconfigure(self, pins: Pins) -> None:
        """Vets every list anew, by other pins."""
        self._pins = pins
        self.enforced = pins.enforced
        self._vetted = {}
        self._withheld = {}

    def forget(self, link: LinkKey) -> None:
        """Drops the verdicts on a link that is gone."""
        self._vetted.pop(link, None)
        self._withheld.pop(link, None)

    def settle(self, key: ListKey) -> None:
        """Drops the verdicts on the list that was known before."""
        verdicts = self._vetted.get(key.link, {})
        if key.kind in verdicts:
            verdicts[key.kind] = self._known.latest(key, verdicts[key.kind])

    def listing(self, link: LinkKey, kind: Kind) -> Listing:
        """A known list, without the entries that lack a required approval."""
        return self._vet(link, kind).approved

    def unapproved(self, link: LinkKey, kind: Kind) -> tuple[RefusedEntry, ...]:
        """The entries of a list that differ from what was approved, shown or not."""
        return self._vet(link, kind).unapproved if self._known.listing(link, kind) is not None else ()

    def has_approved_instructions(self, link: LinkKey) -> bool:
        """False where the server's instructions lack a required approval."""
        identity = self._known.identity(link)
        return identity is None or self._pins.approves_instructions(link.upstream, identity.instructions)

    def withheld_files(self, link: LinkKey) -> frozenset[str]:
        """The files of a link's skills that lack a required approval, as readings of their URIs."""
        if not self.enforced:
            return frozenset()
        vetted = self._vet(link, Kind.SKILLS)
        if not vetted.unapproved:
            return frozenset()
        kept = self._withheld.get(link)
        if kept is None or kept[0] is not vetted:
            names = {entry.name for entry in vetted.unapproved}
            refused = (entry.data for entry in vetted.listing.entries if entry.key in names)
            files = withheld_files(refused, (entry.data for entry in vetted.approved.entries))
            kept = self._withheld[link] = (vetted, files)
        return kept[1]

    def vetting(self, link: LinkKey, kind: Kind, listing: Listing) -> Steps[Listing]:
        """As `listing`, of a list that is not known yet, but may be soon."""
        vetted = yield from self._vetting(link, kind, listing)
        return vetted.approved

    def _vet(self, link: LinkKey, kind: Kind) -> _Vetted:
        return at_once(self._vetting(link, kind, self._known.snapshots[link].lists[kind]))

    def _vetting(self, link: LinkKey, kind: Kind, listing: Listing) -> Steps[_Vetted]:
        key, verdicts = ListKey(link, kind), self._vetted.setdefault(link, {})
        kept = verdicts.get(kind, ())
        found = next((vetted for vetted in kept if vetted.listing is listing), None)
        if found is None:
            earlier = next((vetted.flaws for vetted in self._known.latest(key, kept)), None)
            found = yield from _vetting_listing(self._pins, key, listing, earlier)
            verdicts[kind] = (*self._known.latest(key, verdicts.get(kind, ())), found)
        return found


def _vetting_listing(pins: Pins, key: ListKey, listing: Listing, earlier: Derived[str | None] | None) -> Steps[_Vetted]:
    upstream, kind = key.link.upstream, key.kind
    flaws = yield from deriving(
        listing.entries,
        lambda entry: pins.flaw(upstream, kind, entry.key, entry.data),
        earlier,
        lambda entry: PINNED_BYTES * len(entry.data),
    )
    unapproved = tuple(
        RefusedEntry(upstream, kind, entry.key, flaw)
        for entry, flaw in zip(listing.entries, flaws.results, strict=True)
        if flaw is not None
    )
    if not unapproved or not pins.enforced:
        return _Vetted(listing, listing, unapproved, flaws)
    entries = tuple(entry for entry, flaw in zip(listing.entries, flaws.results, strict=True) if flaw is None)
    return _Vetted(listing, Listing(entries, (*listing.refused, *unapproved)), unapproved, flaws)
