"""Search for tools by meaning, beside search by words: vectors from a service that is configured (`proxy.embeddings`).

Vectors are kept by the digest of their text, for no caller; a ranking comes from the vectors of one view alone, once
all of its tools have one, so that what a caller may not use changes nothing that it finds (R38). Nothing is kept of a
query. Where the service is slow, wrong or away, searches go by words alone.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import structlog

from mcproxy.catalog.search.ranking import ToolText
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.gateway.component import Component, Reconfiguration
from mcproxy.gateway.listings.internal_calls import retry_delay
from mcproxy.gateway.search.embedding_service import EmbeddingFailed, EmbeddingService
from mcproxy.gateway.search.indexes import MAX_TOOLS, SearchableView, searched_text
from mcproxy.settings import Settings
from mcproxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from mcproxy.gateway.search.vectors import Matrix

log = structlog.get_logger()

DEPTH: Final = 50
"""Tools of each of the two rankings that are put together."""
_CONSTANT: Final = 60
"""Of reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009): the greater, the less the first ranks stand out."""
LONGEST_SLEEP: Final = 1.0
"""Seconds after which a service that failed is looked at again: it may be another by then."""
MAX_TEXT: Final = 2000
"""Characters of a tool that its vector is made of."""
MAX_QUERY: Final = 1000
"""Characters of a query, likewise."""
MAX_VIEWS: Final = 8
"""Views whose vectors are kept side by side; each has them as a matrix, four bytes for a number."""


class RankedBy(Enum):
    BOTH = "both"
    WORDS = "words"


class _ViewVectors(NamedTuple):
    view: SearchableView
    digests: tuple[bytes, ...]
    """Of the texts of its tools, in order."""
    matrix: Matrix | None
    """None until each has a vector."""


class ToolEmbeddings(Component):
    """The vectors of all searched tools, and rankings by them. `run` fetches those that are missing."""

    goes_by = frozenset({"proxy"})

    def __init__(self, settings: Settings, metrics: Metrics, sleep: Sleep = anyio.sleep, now: Clock = time.monotonic):
        self._metrics = metrics
        self._sleep = sleep
        self._now = now
        self._service: EmbeddingService | None = None
        self._replaced: list[EmbeddingService] = []
        """Services that are not asked any more, and have connections to close."""
        self._vectors: OrderedDict[bytes, Matrix] = OrderedDict()
        """By the digest of the text, the least recently used first."""
        self._missing: dict[bytes, str] = {}
        """Texts that wait for a vector, by their digest: the last that were asked for, at most as many as are kept."""
        self._views: OrderedDict[int, _ViewVectors] = OrderedDict()
        """By the identity of the view, which each keeps alive."""
        self._asking = 0
        self._failures = 0
        self._retry_at = 0.0
        self._wakeup = Wakeup()
        self._use(settings)

    @property
    def on(self) -> bool:
        return self._service is not None

    def reconfigure(self, change: Reconfiguration) -> None:
        self._use(change.settings)

    async def run(self) -> None:
        """Has vectors made of what searched views hold, until cancelled."""
        try:
            while True:
                for service in self._replaced:
                    await service.aclose()
                self._replaced.clear()
                if self._service is None or not self._missing:
                    await self._wakeup.wait()
                elif (wait := self._retry_at - self._now()) > 0:
                    await self._sleep(min(wait, LONGEST_SLEEP))
                else:
                    await self._make(self._service)
        finally:
            with anyio.CancelScope(shield=True):
                for last in (*self._replaced, self._service):
                    if last is not None:
                        await last.aclose()

    async def ranked(self, view: SearchableView, query: str, limit: int) -> list[int]:
        """The positions of the best `limit` tools of a view, by words and, as far as that can be had, by meaning."""
        by_meaning = await self._by_meaning(view, query)
        self._metrics.search_rankings.labels((RankedBy.BOTH if by_meaning else RankedBy.WORDS).value).inc()
        if not by_meaning:
            return view.words.search(query, limit)
        return fused([view.words.search(query, max(DEPTH, limit)), by_meaning], limit)

    async def _by_meaning(self, view: SearchableView, query: str) -> list[int]:
        """The positions of the tools whose vectors are most like that of the query; none where there are no vectors."""
        service = self._service
        matrix = self._matrix_of(view)
        if service is None or matrix is None or not query.strip() or self._now() < self._retry_at:
            return []
        if self._asking >= service.settings.max_concurrent:
            return []
        self._asking += 1
        try:
            (vector,) = await service([query[:MAX_QUERY]], service.settings.timeout)
            if service is not self._service:
                return []
            self._check_length(len(vector))
        except EmbeddingFailed as error:
            self._note_failure(service, error)
            return []
        finally:
            self._asking -= 1
        self._note_success()
        from mcproxy.gateway.search.vectors import nearest

        return nearest(matrix, vector, DEPTH)

    def _matrix_of(self, view: SearchableView) -> Matrix | None:
        """The vectors of a view's tools, in order; None until each has one: those that lack one are asked for."""
        known = self._views.get(id(view.view))
        if known is None:
            known = _ViewVectors(
                view, tuple(_digest(embedded_text(searched_text(shown))) for shown in view.tools), None
            )
        if known.matrix is None and known.digests and not self._want(known):
            from mcproxy.gateway.search.vectors import stacked

            known = known._replace(matrix=stacked([self._vectors[digest] for digest in known.digests]))
        self._views[id(view.view)] = known
        self._views.move_to_end(id(view.view))
        if len(self._views) > MAX_VIEWS:
            self._views.popitem(last=False)
        return known.matrix

    def _want(self, known: _ViewVectors) -> bool:
        """Whether some of a view's tools lack a vector; then they are asked for, unless there is no room for all."""
        lacking = [place for place, digest in enumerate(known.digests) if digest not in self._vectors]
        if lacking and len(known.digests) <= self._capacity():
            for place in lacking:
                digest = known.digests[place]
                self._missing.pop(digest, None)
                self._missing[digest] = embedded_text(searched_text(known.view.tools[place]))
            while len(self._missing) > self._capacity():
                # Of a list that was replaced meanwhile, or a view that is searched no more.
                del self._missing[next(iter(self._missing))]
            self._wakeup.notify_all()
        for digest in known.digests:
            if digest in self._vectors:
                self._vectors.move_to_end(digest)
        return bool(lacking)

    def _capacity(self) -> int:
        """How many vectors there is room for, of the length of those that are kept."""
        vector = next(iter(self._vectors.values()), None)
        if self._service is None or vector is None:
            return MAX_TOOLS
        return min(MAX_TOOLS, max(1, self._service.settings.max_bytes // (4 * len(vector))))

    async def _make(self, service: EmbeddingService) -> None:
        """Vectors of one batch."""
        batch = dict(list(self._missing.items())[: service.settings.max_batch])
        try:
            vectors = await service(list(batch.values()), service.settings.batch_timeout)
            if service is not self._service:
                return
            self._check_length(vectors.shape[1])
        except EmbeddingFailed as error:
            self._note_failure(service, error)
            return
        self._note_success()
        for digest, vector in zip(batch, vectors, strict=True):
            self._missing.pop(digest, None)
            self._vectors[digest] = vector
        while len(self._vectors) > self._capacity():
            self._vectors.popitem(last=False)
        self._metrics.embedded_texts.set(len(self._vectors))

    def _check_length(self, dimensions: int) -> None:
        """Raises EmbeddingFailed where vectors have another length than those that are kept, which then go."""
        kept = next(iter(self._vectors.values()), None)
        if kept is not None and len(kept) != dimensions:
            before = len(kept)
            self._forget()
            raise EmbeddingFailed(f"its vectors have {dimensions} numbers, and had {before}")

    def _use(self, settings: Settings) -> None:
        before, chosen = self._service, settings.proxy.embeddings
        if (None if before is None else before.settings) == chosen:
            return
        self._service = None if chosen is None else EmbeddingService(chosen)
        if before is not None:
            self._replaced.append(before)
            if chosen is None or (chosen.url, chosen.model) != (before.settings.url, before.settings.model):
                self._forget()
        self._failures, self._retry_at = 0, 0.0
        self._wakeup.notify_all()

    def _forget(self) -> None:
        self._vectors.clear()
        self._missing.clear()
        self._views.clear()
        self._metrics.embedded_texts.set(0)

    def _note_failure(self, service: EmbeddingService, error: EmbeddingFailed) -> None:
        self._metrics.embedding_requests.labels("failed").inc()
        if service is not self._service:
            return
        if not self._failures:
            log.warning("the embedding service failed: searches go by words alone", why=str(error))
        self._failures += 1
        self._retry_at = self._now() + retry_delay(self._failures)

    def _note_success(self) -> None:
        self._metrics.embedding_requests.labels("ok").inc()
        if self._failures:
            log.info("the embedding service answers again")
        self._failures, self._retry_at = 0, 0.0


def embedded_text(tool: ToolText) -> str:
    """What the vector of a tool is made of."""
    parts = (f"{tool.upstream}: {tool.name}", tool.title, tool.description, tool.parameters)
    return "\n".join(part for part in parts if part)[:MAX_TEXT]


def fused(rankings: Sequence[Sequence[int]], limit: int) -> list[int]:
    """Several rankings as one (reciprocal rank fusion); of equals the first position comes first."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for place, position in enumerate(ranking, 1):
            scores[position] = scores.get(position, 0.0) + 1 / (_CONSTANT + place)
    return sorted(scores, key=lambda position: (-scores[position], position))[:limit]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
