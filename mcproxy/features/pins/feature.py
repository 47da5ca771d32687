"""Compares what upstreams offer with what `access.pins` approved, for operators, metrics, and calls to idle upstreams.

This module hides nothing: the catalogue leaves out unapproved definitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from mcproxy.access.pins import NOUNS, approved
from mcproxy.call.calls import Call, Failed, Outcome
from mcproxy.call.errors import Party, Reason
from mcproxy.call.upstreams import Upstream, UpstreamStatus
from mcproxy.catalog.freshness import DOUBTFUL
from mcproxy.catalog.naming import RefusedEntry
from mcproxy.configuration.lock import PINNED
from mcproxy.gateway.feature import Core, Feature, Place, PlacedUpstream
from mcproxy.gateway.listings.fetcher import Refetch
from mcproxy.gateway.listings.keys import LinkKey, ListKey
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, ErrorObject, parse_text, raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings.access.pins import Approved, Manifest
from mcproxy.settings.differences import enabled


class VettedUpstream:
    """An upstream that starts on demand and whose definitions must be approved. They may change with each start.

    A tool or prompt is called only after this start's definitions have been compared with the approved ones.
    """

    def __init__(self, upstream: Upstream, catalogue: Catalogue, refetch: Refetch) -> None:
        self._upstream = upstream
        self._catalogue = catalogue
        self._refetch = refetch

    @property
    def name(self) -> str:
        return self._upstream.name

    @property
    def status(self) -> UpstreamStatus:
        return self._upstream.status

    async def __call__(self, call: Call) -> Outcome:
        link, kind = LinkKey(self.name, call.over), call.row.named_in
        if kind is None or self._catalogue.known.freshness(link, kind) is not DOUBTFUL:
            return await self._upstream(call)
        failed = await self._refetch(ListKey(link, kind), call)
        if failed is not None:
            return failed
        assert call.row.subject_key is not None
        own = parse_text(call.params.get(call.row.subject_key, b""))
        if any(entry.name == own for entry in self._catalogue.vetted.unapproved(link, kind)):
            name = call.notes.label[1] if call.notes.label else own
            sentence = f"Unknown {NOUNS[kind]}: {name}"
            error = ErrorObject(INVALID_PARAMS, sentence, raw({"name": name}))
            return Failed(error, Party.GATEWAY, Reason.DENIED)
        return await self._upstream(call)

    def release(self, owner: str) -> None:
        self._upstream.release(owner)


class Pins(Feature):
    """Compares the definitions offered over shared links with the approved ones."""

    name = "pins"

    def __init__(self, core: Core) -> None:
        self._catalogue = core.catalogue
        self._refetch = core.fetcher.refetched
        self._metrics = core.metrics
        self._enforced = core.settings.access.pins.mode == "enforce"
        remembers = core.state is not None and core.settings.proxy.remember_lists
        self._idling = {spec.name for spec in core.settings.upstreams if spec.may_idle or remembers}
        self._upstreams = tuple(enabled(core.settings))
        self._count_unapproved()

    def upstream_stages(self) -> Iterable[PlacedUpstream]:
        if not self._enforced:
            return []
        return [PlacedUpstream(Place.VERIFY, "compares a server's definitions at each start", self._vetted)]

    def _vetted(self, upstream: Upstream) -> Upstream:
        """`upstream`, with its definitions compared at each start, if it starts on demand."""
        is_idling = upstream.name in self._idling
        return VettedUpstream(upstream, self._catalogue, self._refetch) if is_idling else upstream

    def unapproved(self) -> list[RefusedEntry]:
        """The definitions on offer that differ from what was approved."""
        return [entry for name in self._upstreams for kind in Kind for entry in self._unapproved(name, kind)]

    def offered(self) -> dict[str, Approved | None]:
        """What each upstream offers now, in the form to be approved; None for an upstream whose lists are unknown."""
        return {name: self._offered(LinkKey(name, None)) for name in self._upstreams}

    def _unapproved(self, upstream: str, kind: Kind) -> tuple[RefusedEntry, ...]:
        return self._catalogue.vetted.unapproved(LinkKey(upstream, None), kind)

    def _offered(self, link: LinkKey) -> Approved | None:
        identity = self._catalogue.known.identity(link)
        listings = {kind: self._catalogue.known.listing(link, kind) for kind in Kind}
        if identity is None or None in (listings[kind] for kind in PINNED):
            return None
        entries = {kind: {e.key: e.data for e in listing.entries} for kind, listing in listings.items() if listing}
        lists = {kind: tuple(found.values()) for kind, found in entries.items()}
        manifest = Manifest(
            identity.era, identity.version, identity.capabilities, identity.info, identity.instructions, lists
        )
        return approved(identity.instructions, entries, manifest)

    def _count_unapproved(self) -> None:
        """Counts unapproved definitions each time metrics are scraped."""
        for name in self._upstreams:
            for kind in PINNED:
                count = partial(self._count, name, kind)
                self._metrics.pins_refused.labels(name, kind.value).set_function(count)
            instructions = self._metrics.pins_refused.labels(name, "instructions")
            instructions.set_function(partial(self._count_instructions, name))

    def _count(self, upstream: str, kind: Kind) -> int:
        return len(self._unapproved(upstream, kind))

    def _count_instructions(self, upstream: str) -> int:
        return not self._catalogue.vetted.has_approved_instructions(LinkKey(upstream, None))
