"""Serves the lists of the previous run until servers have connected, and saves those of this run for the next.

Only lists of shared links are remembered. The catalogue treats them like fetched ones: policy, pins and
naming apply to them.
"""

from __future__ import annotations

from typing import Final, Self

import anyio
import structlog

from mcproxy.call.upstreams import Connected, UpstreamChanged, UpstreamEvent
from mcproxy.features.remembering.store import ListStore, RememberedLists
from mcproxy.gateway.feature import Core, Feature
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.protocol.methods import Kind
from mcproxy.settings.differences import enabled

log = structlog.get_logger()

SAVE_AFTER: Final = 1.0
"""Seconds from an event to the first check whether the lists are known, and between checks."""
LOOKS: Final = 60
"""The most checks for one event. If a server never answers for one list, none of its lists is saved."""


class Remembering(Feature):
    """Loads lists when it is created, before any client can ask, and saves them in the background."""

    name = "remembering"
    hears = frozenset({Connected, UpstreamChanged})

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = None if core.state is None else ListStore(core.state / "lists", core.sealer)
        specs = {} if self._store is None else enabled(core.settings)
        self._specs = {name: spec for name, spec in specs.items() if not spec.has_own_logins and not spec.fault}
        self._saved: dict[str, RememberedLists] = {}
        self._looks: dict[str, int] = {}
        """The checks that are left for each server whose lists may have changed."""
        self._more = anyio.Event()
        for name, spec in self._specs.items():
            link = LinkKey(name, None)
            if name in core.kept or core.catalogue.known.identity(link) is not None or spec.start == "on_demand":
                continue
            if self._store is not None and (found := self._store.load(spec)) is not None:
                self._saved[name] = found
                core.fetcher.remember(link, found.identity, found.lists)
                log.info("serving remembered lists until it has connected", upstream=name)

    def adopt(self, previous: Self) -> None:
        self._saved = {**previous._saved, **self._saved}
        self._looks = dict(previous._looks)

    def on_event(self, event: UpstreamEvent) -> None:
        if event.owner is None and event.upstream in self._specs:
            self._looks[event.upstream] = LOOKS
            self._more.set()

    async def run(self) -> None:
        while True:
            if not self._looks:
                self._more = anyio.Event()
                await self._more.wait()
            await self._core.sleep(SAVE_AFTER)
            for name in list(self._looks):
                await self._look(name)

    async def _look(self, name: str) -> None:
        """Saves the lists of a server if all are known and something has changed."""
        self._looks[name] -= 1
        found = self._current(LinkKey(name, None))
        if found is None:
            if self._looks[name] <= 0:
                del self._looks[name]
            return
        del self._looks[name]
        if self._store is None or name not in self._specs or found == self._saved.get(name):
            return
        try:
            await anyio.to_thread.run_sync(self._store.save, self._specs[name], found)
        except OSError as error:
            log.warning("lists could not be remembered", upstream=name, why=error.strerror)
        else:
            self._saved[name] = found

    def _current(self, link: LinkKey) -> RememberedLists | None:
        """The lists that the server sent over the current connection; None until all have arrived."""
        known = self._core.catalogue.known
        identity = known.identity(link)
        if identity is None or not known.is_up(link) or self._core.fetcher.is_fetching(link):
            return None
        listings = {kind: known.listing(link, kind) for kind in Kind}
        lists = {
            kind: tuple(entry.data for entry in listing.entries)
            for kind, listing in listings.items()
            if listing is not None and known.announces(link, kind)
        }
        return RememberedLists(identity, lists)
