"""Search for tools by meaning, in addition to words, with vectors from a configured service (`proxy.embeddings`).

Vectors are kept by the digest of their text and belong to no caller. A ranking uses only the vectors of one view, once
all of its tools have one, so that tools which a caller may not use do not influence its results (R38). Queries are not
kept. While the service is slow, broken or down, searches use words only.
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
from mcproxy.features.search.embedding_service import EmbeddingFailed, EmbeddingService
from mcproxy.features.search.indexes import MAX_TOOLS, SearchableView, searched_text
from mcproxy.gateway.listings.internal_calls import retry_delay
from mcproxy.settings import Settings
from mcproxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from mcproxy.features.search.vectors import Matrix

log = structlog.get_logger()

DEPTH: Final = 50
"""Tools that are taken from the top of each of the two rankings."""
_CONSTANT: Final = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009).

The larger it is, the less the top ranks dominate.
"""
LONGEST_SLEEP: Final = 1.0
"""The most seconds before a failed service is tried again."""
MAX_TEXT: Final = 2000
"""The most characters of a tool's text that go into its vector."""
MAX_QUERY: Final = 1000
"""The most characters of a query that go into its vector."""
MAX_VIEWS: Final = 8
"""The most views whose vectors are kept as a matrix, at four bytes per number."""


class RankedBy(Enum):
    """The rankings that a search used; the values are a label of metrics."""

    BOTH = "both"
    WORDS = "words"


class _ViewVectors(NamedTuple):
    view: SearchableView
    digests: tuple[bytes, ...]
    """Digests of the tools' texts, in the view's order."""
    matrix: Matrix | None
    """None until every tool has a vector."""


class ToolEmbeddings:
    """The vectors of all searched tools, and rankings by them. `run` fetches missing vectors."""

    def __init__(self, settings: Settings, metrics: Metrics, sleep: Sleep = anyio.sleep, now: Clock = time.monotonic):
        self._metrics = metrics
        self._sleep = sleep
        self._now = now
        self._service: EmbeddingService | None = None
        self._vectors: OrderedDict[bytes, Matrix] = OrderedDict()
        """Vectors by the digest of their text, least recently used first."""
        self._missing: dict[bytes, str] = {}
        """Texts without a vector, by their digest: the most recently requested, no more than there is room for."""
        self._views: OrderedDict[int, _ViewVectors] = OrderedDict()
        """Vectors by the identity of their view, which each entry keeps alive."""
        self._asking = 0
        self._failures = 0
        self._retry_at = 0.0
        self._wakeup = Wakeup()
        self.use(settings)

    @property
    def on(self) -> bool:
        """Whether a service is configured."""
        return self._service is not None

    def services(self) -> list[EmbeddingService]:
        """The service whose connections are open, if one is configured."""
        return [] if self._service is None else [self._service]

    async def run(self) -> None:
        """Fetches the missing vectors of searched views, until cancelled."""
        while True:
            if self._service is None or not self._missing:
                await self._wakeup.wait()
            elif (wait := self._retry_at - self._now()) > 0:
                await self._sleep(min(wait, LONGEST_SLEEP))
            else:
                await self._make(self._service)

    async def ranked(self, view: SearchableView, query: str, limit: int) -> list[int]:
        """The indexes of the best `limit` tools of a view, by words and, where vectors are available, by meaning."""
        by_meaning = await self._by_meaning(view, query)
        self._metrics.search_rankings.labels((RankedBy.BOTH if by_meaning else RankedBy.WORDS).value).inc()
        if not by_meaning:
            return view.words.search(query, limit)
        return fused([view.words.search(query, max(DEPTH, limit)), by_meaning], limit)

    async def _by_meaning(self, view: SearchableView, query: str) -> list[int]:
        """The indexes of the tools whose vectors are closest to the query's; empty where vectors are missing."""
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
        from mcproxy.features.search.vectors import nearest

        return nearest(matrix, vector, DEPTH)

    def _matrix_of(self, view: SearchableView) -> Matrix | None:
        """The vectors of a view's tools, in order. None while any is missing; missing ones are then fetched."""
        known = self._views.get(id(view.view))
        if known is None:
            known = _ViewVectors(
                view, tuple(_digest(embedded_text(searched_text(shown))) for shown in view.tools), None
            )
        if known.matrix is None and known.digests and not self._want(known):
            from mcproxy.features.search.vectors import stacked

            known = known._replace(matrix=stacked([self._vectors[digest] for digest in known.digests]))
        self._views[id(view.view)] = known
        self._views.move_to_end(id(view.view))
        if len(self._views) > MAX_VIEWS:
            self._views.popitem(last=False)
        return known.matrix

    def _want(self, known: _ViewVectors) -> bool:
        """Whether a view's tools lack vectors; these are queued, unless there is no room for the vectors of all."""
        lacking = [place for place, digest in enumerate(known.digests) if digest not in self._vectors]
        if lacking and len(known.digests) <= self._capacity():
            for place in lacking:
                digest = known.digests[place]
                self._missing.pop(digest, None)
                self._missing[digest] = embedded_text(searched_text(known.view.tools[place]))
            while len(self._missing) > self._capacity():
                # The list was replaced meanwhile, or the view is no longer searched.
                del self._missing[next(iter(self._missing))]
            self._wakeup.notify_all()
        for digest in known.digests:
            if digest in self._vectors:
                self._vectors.move_to_end(digest)
        return bool(lacking)

    def _capacity(self) -> int:
        """How many vectors there is room for, at the length of those that are kept."""
        vector = next(iter(self._vectors.values()), None)
        if self._service is None or vector is None:
            return MAX_TOOLS
        return min(MAX_TOOLS, max(1, self._service.settings.max_bytes // (4 * len(vector))))

    async def _make(self, service: EmbeddingService) -> None:
        """Fetches the vectors of one batch of texts."""
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
        """Raises EmbeddingFailed, and drops the kept vectors, if new ones differ from them in length."""
        kept = next(iter(self._vectors.values()), None)
        if kept is not None and len(kept) != dimensions:
            before = len(kept)
            self._forget()
            raise EmbeddingFailed(f"its vectors have {dimensions} numbers, and had {before}")

    def use(self, settings: Settings) -> None:
        """Puts new settings into force; keeps the vectors if service and model are the same."""
        before, chosen = self._service, settings.proxy.embeddings
        if (None if before is None else before.settings) == chosen:
            return
        self._service = None if chosen is None else EmbeddingService(chosen)
        if before is not None and (
            chosen is None or (chosen.url, chosen.model) != (before.settings.url, before.settings.model)
        ):
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
    """The text of a tool from which its vector is made."""
    parts = (f"{tool.upstream}: {tool.name}", tool.title, tool.description, tool.parameters)
    return "\n".join(part for part in parts if part)[:MAX_TEXT]


def fused(rankings: Sequence[Sequence[int]], limit: int) -> list[int]:
    """Merges several rankings into one (reciprocal rank fusion); among equals the lowest index comes first."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for place, position in enumerate(ranking, 1):
            scores[position] = scores.get(position, 0.0) + 1 / (_CONSTANT + place)
    return sorted(scores, key=lambda position: (-scores[position], position))[:limit]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
