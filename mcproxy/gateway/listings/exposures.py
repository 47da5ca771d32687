"""Each list as each endpoint shows it to each kind of caller: kept while the list is known, and worked out in turns.

Of a list that changes, the entries that stayed are taken over. Decides nothing: `catalog.views.exposure` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from mcproxy.access.policy import RoleSet
from mcproxy.catalog.naming import Layout
from mcproxy.catalog.views.exposure import NOTHING, Exposure, exposing, exposing_to_handshake, permitting
from mcproxy.catalog.views.snapshots import Listing
from mcproxy.concurrency.turns import Steps, at_once
from mcproxy.gateway.listings.keys import LinkKey, ListKey
from mcproxy.gateway.listings.known_links import KnownLinks
from mcproxy.gateway.listings.vetted_lists import VettedLists
from mcproxy.protocol.methods import Kind


class Showing(NamedTuple):
    """An endpoint, and the callers there that are shown the same of a list."""

    endpoint: str
    roles: RoleSet | None = None
    """None for callers who may use everything."""
    tasks: bool = False
    """Whether they may call tools as tasks."""
    handshake: bool = False
    """Whether they are of the handshake era and the list is of tools, which look otherwise there."""


class _Kept(NamedTuple):
    listing: Listing
    exposure: Exposure


class _Work(msgspec.Struct, eq=False):
    steps: Steps[Exposure]
    made: Exposure | None = None
    users: int = 0


class Exposures:
    """Exposures of the lists in `known`, at most `most` of each list; `layout` says what roles may use."""

    def __init__(
        self,
        known: KnownLinks,
        vetted: VettedLists,
        layout: Callable[[str, RoleSet | None], Layout],
        most: int,
    ) -> None:
        self._known = known
        self._vetted = vetted
        self._layout = layout
        self._most = most
        self._kept: dict[ListKey, dict[Showing, tuple[_Kept, ...]]] = {}
        """Of each the exposure of the known list, and of one that may take its place.

        What was used last is last. The inner mappings are replaced with the settings: work that goes on in turns
        leaves what it made where nobody looks.
        """

        self._under_way: dict[ListKey, dict[tuple[Showing, int], _Work]] = {}
        """Work on exposures, by the identity of the list too."""

    def reconfigure(self, most: int) -> None:
        """Drops all exposures: they were made by other settings."""
        self._most = most
        self._kept, self._under_way = {}, {}

    def forget(self, link: LinkKey) -> None:
        """Drops the exposures of a link that is gone."""
        for kind in Kind:
            self._kept.pop(ListKey(link, kind), None)
            self._under_way.pop(ListKey(link, kind), None)

    def of(self, key: ListKey, showing: Showing) -> Exposure:
        """A known list as those callers see it: a look-up, or at once the work of `making`."""
        return at_once(self.making(key, showing))

    def making(self, key: ListKey, showing: Showing) -> Steps[Exposure]:
        """A known list as those callers see it, worked out in turns."""
        return self._making(key, showing, self._known.snapshots[key.link].lists[key.kind])

    def preparing(self, key: ListKey, listing: Listing, others: Iterable[Showing] = ()) -> Steps[None]:
        """Works out in turns what is seen once `listing` takes the known list's place.

        By all who see that list now, and by `others`.
        """
        if key.link not in self._known.snapshots:
            return  # it went before the first step
        known, showings = self._known.listing(*key), self._kept.setdefault(key, {})
        current = [showing for showing, kept in showings.items() if any(each.listing is known for each in kept)]
        for showing in dict.fromkeys((*others, *current)):
            if self._kept.get(key) is showings:
                yield from self._making(key, showing, listing)

    def settle(self, key: ListKey) -> None:
        """Drops what was worked out of the list that was known before, but for what another can be made from."""
        for showing, kept in self._kept.get(key, {}).items():
            self._kept[key][showing] = self._known.latest(key, kept)

    def _making(self, key: ListKey, showing: Showing, listing: Listing) -> Steps[Exposure]:
        showings = self._kept.setdefault(key, {})
        kept = showings.get(showing, ())
        found = next((each.exposure for each in kept if each.listing is listing), None)
        if found is None:
            return (yield from self._shared(key, showing, listing))
        showings[showing] = showings.pop(showing)
        return found

    def _shared(self, key: ListKey, showing: Showing, listing: Listing) -> Steps[Exposure]:
        """Whoever needs an exposure takes steps of the one piece of work on it; the last who leaves drops that."""
        under_way, place = self._under_way.setdefault(key, {}), (showing, id(listing))
        work = under_way.get(place)
        if work is None:
            work = under_way[place] = _Work(self._work(key, showing, listing))
        work.users += 1
        try:
            while work.made is None:
                try:
                    next(work.steps)
                except StopIteration as ended:
                    work.made = ended.value
                    assert work.made is not None, "it failed for another who needs it"
                else:
                    yield
        finally:
            work.users -= 1
            if not work.users:
                del under_way[place]
        return work.made

    def _work(self, key: ListKey, showing: Showing, listing: Listing) -> Steps[Exposure]:
        showings = self._kept[key]
        earlier = next((each.exposure for each in self._known.latest(key, showings.get(showing, ()))), NOTHING)
        made = yield from self._made(key, showing, listing, earlier)
        showings[showing] = (*self._known.latest(key, showings.pop(showing, ())), _Kept(listing, made))
        if len(showings) > self._most:
            del showings[next(iter(showings))]
        return made

    def _made(self, key: ListKey, showing: Showing, listing: Listing, earlier: Exposure) -> Steps[Exposure]:
        # All is looked up before the first turn of others, who may put other settings in force.
        space = self._layout(showing.endpoint, showing.roles).space(key.link.upstream)
        if showing.roles is not None:
            whole = yield from self._making(key, showing._replace(roles=None), listing)
            return (yield from permitting(space, key.kind, whole, earlier))
        if showing.handshake:
            whole = yield from self._making(key, showing._replace(handshake=False), listing)
            return (yield from exposing_to_handshake(whole, earlier))
        approved = yield from self._vetted.vetting(*key, listing)
        return (yield from exposing(space, key.kind, approved, earlier, tasks=showing.tasks))
