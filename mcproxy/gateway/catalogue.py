"""What is known of every link, and the view that each caller has of it. State and look-ups; fetches nothing.

A session of an upstream with `connection: session` sees what its own link lists; until that is known, what the
shared link does, if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mcproxy.call import Caller, Owner, ServerIdentity
from mcproxy.catalog.freshness import DOUBTFUL, NOT_LISTED, Freshness
from mcproxy.catalog.merging import EMPTY, Exposure, Listing, Snapshot, View, expose, merge, relayed
from mcproxy.catalog.naming import Layout, Space
from mcproxy.protocol.capabilities import tells_changes
from mcproxy.protocol.jsonrpc import Params
from mcproxy.protocol.methods import Kind
from mcproxy.protocol.tasks import Dialect, dialect, offer, takes_tool_calls


class LinkKey(NamedTuple):
    """A connection to an upstream: everybody's, or its owner's."""

    upstream: str
    owner: Owner


class Catalogue:
    """Of the upstreams in `layouts`; what others report is not kept."""

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        self._layouts = layouts
        self._snapshots: dict[LinkKey, Snapshot] = {}
        self._up: set[LinkKey] = set()
        self._exposures: dict[tuple[str, LinkKey, Kind, bool], tuple[Listing, Exposure]] = {}
        self._views: dict[tuple[str, Owner, Dialect | None], View] = {}

    def reconfigure(self, layouts: Mapping[str, Layout]) -> None:
        """Shows what is known otherwise from now on. What was known of upstreams that are gone is to be retired."""
        self._layouts = layouts
        self._exposures.clear()
        self._views.clear()

    def layout(self, endpoint: str) -> Layout:
        """An endpoint that does not exist shows nothing."""
        return self._layouts.get(endpoint) or Layout(endpoint, ())

    def link(self, space: Space, caller: Caller) -> LinkKey:
        """The link that serves `caller`."""
        own = space.spec.connection == "session" and caller.session is not None
        return LinkKey(space.upstream, caller.session if own else None)

    def links(self, caller: Caller) -> list[LinkKey]:
        """Those behind all that `caller` sees."""
        return [self.link(space, caller) for space in self.layout(caller.endpoint).spaces]

    def view(self, caller: Caller) -> View:
        """What `caller` sees. A look-up, unless something changed since."""
        owner = caller.session if self._owns(caller.session) else None
        key = (caller.endpoint, owner, dialect(caller.version))
        if key not in self._views:
            self._views[key] = self._merged(self.layout(caller.endpoint), owner, caller.version)
        return self._views[key]

    def links_of(self, upstream: str) -> list[LinkKey]:
        """Those of which anything is known."""
        return [link for link in self._snapshots if link.upstream == upstream]

    def is_up(self, link: LinkKey) -> bool:
        return link in self._up

    def up(self) -> list[LinkKey]:
        return list(self._up)

    def identity(self, link: LinkKey) -> ServerIdentity | None:
        """What the upstream said of itself when it last connected."""
        snapshot = self._snapshots.get(link)
        return snapshot.identity if snapshot else None

    def announces(self, link: LinkKey, capability: str) -> bool:
        identity = self.identity(link)
        return identity is not None and capability in identity.capabilities

    def listing(self, link: LinkKey, kind: Kind) -> Listing | None:
        """One list as last fetched; None where it is not known."""
        snapshot = self._snapshots.get(link)
        return snapshot.lists.get(kind) if snapshot else None

    def tells_changes(self, link: LinkKey, kind: Kind) -> bool:
        """Whether the upstream says that it notifies of changes of that list."""
        identity = self.identity(link)
        return identity is not None and tells_changes(identity.capabilities, kind.capability)

    def freshness(self, link: LinkKey, kind: Kind) -> Freshness:
        """How long a list is good for, as far as its upstream can be asked."""
        snapshot = self._snapshots.get(link)
        return snapshot.freshness.get(kind, DOUBTFUL) if snapshot and self.is_up(link) else DOUBTFUL

    def parts(self, caller: Caller, kind: Kind) -> list[Freshness]:
        """How long each part of what `caller` sees is good for. Who offers no such list has no part in it."""
        spaces = self.layout(caller.endpoint).spaces
        sources = [self._source(space.upstream, caller.session, kind) for space in spaces]
        return [
            NOT_LISTED if source is None else self.freshness(source, kind)
            for source in sources
            if source is None or self.announces(source, kind.capability)
        ]

    def tasks(self, link: LinkKey, version: str) -> Params | None:
        """What an upstream offers of tasks to a client of `version`; None where it has none of the client's kind."""
        identity = self.identity(link) or self.identity(LinkKey(link.upstream, None))
        if identity is None or dialect(version) is not dialect(identity.version):
            return None
        return offer(identity.version, identity.capabilities)

    def exposure(self, endpoint: str, link: LinkKey, kind: Kind, *, tasks: bool = False) -> Exposure:
        """One known list as `endpoint` shows it to who may call its tools as tasks, or may not."""
        listing = self._snapshots[link].lists[kind]
        key = (endpoint, link, kind, tasks)
        kept = self._exposures.get(key)
        if kept is None or kept[0] is not listing:
            kept = (listing, expose(self.layout(endpoint).space(link.upstream), kind, listing, tasks=tasks))
            self._exposures[key] = kept
        return kept[1]

    def connect(self, link: LinkKey, identity: ServerIdentity) -> None:
        """A link is up. What it listed before stands until it is fetched anew; what it does not offer is empty."""
        before = self._snapshots.get(link, Snapshot()).lists
        offered = {kind: before[kind] for kind in before if kind.capability in identity.capabilities}
        absent = {kind: EMPTY for kind in Kind if kind.capability not in identity.capabilities}
        self._up.add(link)
        self._put(link, Snapshot(identity, {**offered, **absent}))

    def disconnect(self, link: LinkKey) -> None:
        """A link is down. What it listed stays."""
        self._up.discard(link)

    def replace(self, link: LinkKey, kind: Kind, listing: Listing) -> None:
        self._put(link, self._snapshots.get(link, Snapshot()).with_list(kind, listing))

    def renew(self, link: LinkKey, kind: Kind, freshness: Freshness) -> None:
        """Notes how long a known list is good for, from now on."""
        if link in self._snapshots:
            self._snapshots[link] = self._snapshots[link].with_freshness(kind, freshness)

    def empty(self, link: LinkKey) -> None:
        """Forgets what a link listed, not what it is."""
        self._put(link, Snapshot(self.identity(link)))

    def retire(self, link: LinkKey) -> None:
        """Forgets a link."""
        self._up.discard(link)
        self._snapshots.pop(link, None)
        self._exposures = {key: kept for key, kept in self._exposures.items() if key[1] != link}
        self._invalidate(link.owner)

    def _put(self, link: LinkKey, snapshot: Snapshot) -> None:
        if link.upstream in self._layouts:
            self._snapshots[link] = snapshot
            self._invalidate(link.owner)

    def _invalidate(self, owner: Owner) -> None:
        if owner is None:
            self._views.clear()
        else:
            self._views = {key: view for key, view in self._views.items() if key[1] != owner}

    def _owns(self, session: str | None) -> bool:
        return session is not None and any(LinkKey(name, session) in self._snapshots for name in self._layouts)

    def _merged(self, layout: Layout, owner: Owner, version: str) -> View:
        identities: dict[str, ServerIdentity | None] = {}
        exposures: dict[str, dict[Kind, Exposure]] = {}
        for space in layout.spaces:
            links = (LinkKey(space.upstream, owner), LinkKey(space.upstream, None))
            known = next((link for link in links if self.identity(link) is not None), None)
            identities[space.upstream] = self._relayed(known, version)
            sources = {kind: self._source(space.upstream, owner, kind) for kind in Kind}
            tasks = known is not None and takes_tool_calls(self.tasks(known, version) or {})
            exposures[space.upstream] = {
                kind: self.exposure(layout.endpoint, link, kind, tasks=tasks and kind is Kind.TOOLS)
                for kind, link in sources.items()
                if link is not None
            }
        return merge(layout, identities, exposures)

    def _relayed(self, link: LinkKey | None, version: str) -> ServerIdentity | None:
        identity = None if link is None else self.identity(link)
        if link is None or identity is None:
            return None
        return relayed(identity, version, owned=link.owner is not None)

    def _source(self, upstream: str, owner: Owner, kind: Kind) -> LinkKey | None:
        """The link whose list counts: the owner's, else the one that all share; None where neither's is known."""
        links = (LinkKey(upstream, owner), LinkKey(upstream, None))
        return next((link for link in links if self.listing(link, kind) is not None), None)
