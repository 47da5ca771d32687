"""What upstreams said over each link: identity and lists; and whether it is up, idle, or waits for a login.

What is known of a link stays when the link goes down, until it is emptied or retired. Knows no caller and no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeVar

from mcproxy.call.identity import LinkOwner
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.freshness import DOUBTFUL, Freshness
from mcproxy.catalog.views.snapshots import EMPTY, Listing, Snapshot
from mcproxy.gateway.listings.keys import LinkKey, ListKey
from mcproxy.protocol.capabilities import lists, tells_changes
from mcproxy.protocol.eras import Era
from mcproxy.protocol.methods import Kind


class Made(Protocol):
    """Something that was made of a list."""

    @property
    def listing(self) -> Listing:
        """The list."""


M = TypeVar("M", bound=Made)


class KnownLinks:
    """Keeps nothing of upstreams that are not configured. Calls `changed` with each link that changes, and its lists
    that do."""

    def __init__(
        self, is_configured: Callable[[str], bool], changed: Callable[[LinkKey, Collection[Kind]], None]
    ) -> None:
        self._is_configured = is_configured
        self._changed = changed
        self.snapshots: dict[LinkKey, Snapshot] = {}
        self.owned: dict[LinkOwner, set[LinkKey]] = {}
        """The links in `snapshots`, by owner."""
        self._up: set[LinkKey] = set()
        self._idle: set[LinkKey] = set()
        """Links that are down until the next call over them."""
        self.awaiting_login: set[LinkKey] = set()

    def links_of(self, upstream: str) -> list[LinkKey]:
        """The links to an upstream of which anything is known."""
        return [link for link in self.snapshots if link.upstream == upstream]

    def is_up(self, link: LinkKey) -> bool:
        """Whether a link is connected."""
        return link in self._up

    def lasts(self, link: LinkKey, identity: ServerIdentity | None) -> bool:
        """Whether a link is up, and the upstream said `identity` as this connection was made."""
        return self.is_up(link) and self.identity(link) is identity

    def is_reachable(self, link: LinkKey) -> bool:
        """Whether a link is up, or comes up with the next call over it."""
        return link in self._up or link in self._idle

    def up(self) -> list[LinkKey]:
        """The links that are connected."""
        return list(self._up)

    def awaits_login(self, link: LinkKey) -> bool:
        """Whether the owner of a link has to log in before the link works."""
        return link in self.awaiting_login

    def identity(self, link: LinkKey) -> ServerIdentity | None:
        """What the upstream said of itself when it last connected."""
        snapshot = self.snapshots.get(link)
        return snapshot.identity if snapshot else None

    def era(self, link: LinkKey) -> Era | None:
        """The era of a link that is up; None for one that is down, as the upstream may come back in another era."""
        identity = self.identity(link) if self.is_up(link) else None
        return identity.era if identity else None

    def announces(self, link: LinkKey, kind: Kind) -> bool:
        """Whether the upstream declares that it has the list."""
        identity = self.identity(link)
        return identity is not None and lists(identity.capabilities, kind)

    def listing(self, link: LinkKey, kind: Kind) -> Listing | None:
        """One list as last fetched; None if unknown."""
        snapshot = self.snapshots.get(link)
        return snapshot.lists.get(kind) if snapshot else None

    def latest(self, key: ListKey, made: tuple[M, ...]) -> tuple[M, ...]:
        """Of what was made of a list as it was at several times, that of the known one, or one if there is none of it.

        Nothing if no list is known.
        """
        known = self.listing(*key)
        return () if known is None else tuple(each for each in made if each.listing is known)[:1] or made[:1]

    def tells_changes(self, link: LinkKey, kind: Kind) -> bool:
        """Whether the upstream declares that it announces every change of the list.

        For skills no upstream does: a changed list of resources is only a hint.
        """
        identity = self.identity(link)
        if identity is None or kind.extension is not None:
            return False
        return tells_changes(identity.capabilities, kind.capability)

    def freshness(self, link: LinkKey, kind: Kind) -> Freshness:
        """How long a list may be cached; doubtful while its upstream cannot be asked."""
        snapshot = self.snapshots.get(link)
        return snapshot.freshness.get(kind, DOUBTFUL) if snapshot and self.is_up(link) else DOUBTFUL

    def connect(self, link: LinkKey, identity: ServerIdentity) -> None:
        """A link came up.

        Its earlier lists stand until they are fetched anew; lists that it does not offer become empty.
        """
        before = self.snapshots.get(link, Snapshot()).lists
        offered = {kind: before[kind] for kind in before if lists(identity.capabilities, kind)}
        self._up.add(link)
        self._idle.discard(link)
        self._put(link, Snapshot(identity, {**offered, **_absent(identity)}))

    def recall(self, link: LinkKey, identity: ServerIdentity, recorded: Mapping[Kind, Listing]) -> None:
        """Takes the recorded lists of an upstream that is not connected."""
        self._put(link, Snapshot(identity, {**recorded, **_absent(identity)}))

    def idle(self, link: LinkKey) -> None:
        """A link went down until a call needs it. Its lists stay."""
        self._up.discard(link)
        self._idle.add(link)

    def disconnect(self, link: LinkKey) -> None:
        """A link went down. Its lists stay."""
        self._up.discard(link)
        self._idle.discard(link)

    def await_login(self, link: LinkKey, *, awaited: bool) -> None:
        """Begins or ends showing the link's owner a tool to log in with. Its lists stay."""
        if awaited is (link in self.awaiting_login):
            return
        (self.awaiting_login.add if awaited else self.awaiting_login.discard)(link)
        self._put(link, self.snapshots.get(link, Snapshot()))

    def replace(self, link: LinkKey, kind: Kind, listing: Listing) -> None:
        """Takes a list as fetched, in place of the earlier one."""
        self._put(link, self.snapshots.get(link, Snapshot()).with_list(kind, listing))

    def renew(self, link: LinkKey, kind: Kind, freshness: Freshness) -> None:
        """Notes how long a known list may be cached from now on."""
        if link in self.snapshots:
            self.snapshots[link] = self.snapshots[link].with_freshness(kind, freshness)

    def empty(self, link: LinkKey) -> None:
        """Forgets a link's lists; its server's identity stays."""
        self._put(link, Snapshot(self.identity(link)))

    def retire(self, link: LinkKey) -> None:
        """Forgets a link."""
        self._up.discard(link)
        self._idle.discard(link)
        self.awaiting_login.discard(link)
        self.snapshots.pop(link, None)
        self.owned[link.owner] = self.owned.get(link.owner, set()) - {link}
        if not self.owned[link.owner]:
            del self.owned[link.owner]
        self._changed(link, tuple(Kind))

    def _put(self, link: LinkKey, snapshot: Snapshot) -> None:
        if self._is_configured(link.upstream):
            before = self.snapshots.get(link, Snapshot()).lists
            self.snapshots[link] = snapshot
            self.owned.setdefault(link.owner, set()).add(link)
            self._changed(link, [kind for kind in Kind if snapshot.lists.get(kind) is not before.get(kind)])


def _absent(identity: ServerIdentity) -> dict[Kind, Listing]:
    """Empty lists, for those that an upstream does not offer."""
    return {kind: EMPTY for kind in Kind if not lists(identity.capabilities, kind)}
