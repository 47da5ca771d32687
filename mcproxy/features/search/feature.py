"""Search in place of a long list: `find_tools`, and tools that call what it found, at endpoints that turn it on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcproxy.call.calls import Handler
from mcproxy.concurrency.retirement import Retirable
from mcproxy.features.search.answers import ToolSearch
from mcproxy.features.search.embeddings import ToolEmbeddings
from mcproxy.features.search.indirect_calls import IndirectCalls
from mcproxy.gateway.feature import Core, Feature, Place, Placed
from mcproxy.protocol.methods import Subject
from mcproxy.settings.endpoints import key_of


class Search(Feature):
    """Answers the gateway's own tools, and turns calls through them into calls of the tools that they name."""

    name = "search"

    def __init__(self, core: Core) -> None:
        settings = core.settings
        self._settings = settings
        self._embeddings = ToolEmbeddings(settings, core.metrics, core.sleep, core.now)
        self._search = ToolSearch(core.catalogue, core.fetcher, settings, core.metrics, self._embeddings, core.now)
        endpoints = [key_of(name) for name, endpoint in settings.endpoints.items() if endpoint.discovery == "search"]
        self._calls = IndirectCalls(endpoints, core.catalogue, core.resolver, self._search.note_called)

    def adopt(self, previous: Search) -> None:
        """Takes over indexes, vectors, and each caller's last search."""
        self._embeddings = previous._embeddings
        self._embeddings.use(self._settings)
        self._search.adopt(previous._search)

    def stages(self) -> Iterable[Placed]:
        return [
            Placed(Place.REWRITE, "turns call_read and the like into calls of tools", self._calls.unwrapped),
            Placed(Place.CHECK, "checks calls through call_read and the like", self._calls.checked),
        ]

    def entries(self) -> Mapping[Subject, Handler]:
        return {Subject.TOOL: self._search.answer}

    def resources(self) -> Iterable[Retirable]:
        return self._embeddings.services()

    async def run(self) -> None:
        """Fetches missing vectors of searched tools."""
        await self._embeddings.run()
