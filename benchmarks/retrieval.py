"""How often a search finds the right tools: ours beside BM25 over whole text and sqlite's FTS5, on public collections.

`python -m benchmarks.retrieval CLONE...` names git clones that hold the collections (`collections.SOURCES`), and
prints the table. Half of the queries may be tuned on; what counts is the other half.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Final

from benchmarks.collections import SOURCES, Collection, Query
from mcproxy.catalog.search.ranking import ToolIndex, ToolText, terms_of

Search = Callable[[str, int], list[int]]
"""Positions of the best tools for a query, the best first."""
Ranker = Callable[[Sequence[ToolText]], Search]

DEPTHS: Final = (5, 10)
_WORDS: Final = re.compile(r"\w+")


def ours(tools: Sequence[ToolText]) -> Search:
    index = ToolIndex([terms_of(tool) for tool in tools])
    return index.search


def bm25(tools: Sequence[ToolText], k1: float = 1.5, b: float = 0.75) -> Search:
    """Okapi BM25 over all the text of a tool as it is, lower case."""
    documents = [Counter(_WORDS.findall(" ".join(tool).lower())) for tool in tools]
    average = sum(document.total() for document in documents) / len(documents)
    having = Counter(word for document in documents for word in document)

    def search(query: str, limit: int) -> list[int]:
        words = _WORDS.findall(query.lower())
        scores = []
        for position, document in enumerate(documents):
            norm = k1 * (1 - b + b * document.total() / average)
            score = sum(
                log(1 + (len(documents) - having[word] + 0.5) / (having[word] + 0.5))
                * document[word] * (k1 + 1) / (document[word] + norm)
                for word in words if word in document
            )  # fmt: skip
            scores.append((-score, position))
        return [position for score, position in sorted(scores)[:limit] if score < 0]

    return search


def fts5(tools: Sequence[ToolText]) -> Search:
    """sqlite's full-text search: its Porter stemmer, a column for each field, any of the query's words."""
    database = sqlite3.connect(":memory:")
    columns, values = ", ".join(ToolText._fields), ", ".join("?" * len(ToolText._fields))
    database.execute(f"create virtual table tools using fts5({columns}, tokenize='porter unicode61')")
    database.executemany(f"insert into tools values ({values})", tools)

    def search(query: str, limit: int) -> list[int]:
        words = " OR ".join(f'"{word}"' for word in _WORDS.findall(query))
        if not words:
            return []
        sql = "select rowid from tools where tools match ? order by rank limit ?"
        return [row - 1 for (row,) in database.execute(sql, (words, limit))]

    return search


RANKERS: Final[dict[str, Ranker]] = {"BM25": bm25, "FTS5": fts5, "mcproxy": ours}


def hits(search: Search, names: Sequence[str], queries: Sequence[Query], depth: int) -> float:
    """The share of the right tools among the first `depth`, of those that fit there; the mean over all queries."""
    found = 0.0
    for query in queries:
        first = {names[position] for position in search(query.text, depth)}
        found += len(first & query.right) / min(depth, len(query.right))
    return found / max(1, len(queries))


def halves(collection: Collection) -> dict[str, list[Query]]:
    return {
        half: [query for query in collection.queries if query.held_out is held_out]
        for half, held_out in (("tuning", False), ("held out", True))
    }


@dataclass(frozen=True, slots=True)
class Retrieved:
    """How often each ranker finds the right tools of one collection."""

    collection: str
    tools: int
    part: str
    """Of its queries: one of the halves, or all."""
    queries: int
    shares: dict[str, list[float]]
    """By ranker: the hits at each of DEPTHS."""


def retrieved(clones: Sequence[Path]) -> Iterator[Retrieved]:
    """Each collection that is there, by halves and as a whole."""
    for source in SOURCES:
        collection = source.read(clones)
        if collection is None:
            continue
        names = list(collection.tools)
        searches = {name: ranker(list(collection.tools.values())) for name, ranker in RANKERS.items()}
        parts = [
            Retrieved(
                source.name,
                len(names),
                half,
                len(queries),
                {name: [hits(search, names, queries, depth) for depth in DEPTHS] for name, search in searches.items()},
            )
            for half, queries in halves(collection).items()
        ]
        yield from (*parts, together(parts))


def together(parts: Sequence[Retrieved]) -> Retrieved:
    """The parts of one collection as one."""
    queries = sum(part.queries for part in parts)
    shares = {
        name: [
            sum(part.shares[name][place] * part.queries for part in parts) / max(1, queries)
            for place in range(len(DEPTHS))
        ]
        for name in RANKERS
    }
    return Retrieved(parts[0].collection, parts[0].tools, "all", queries, shares)


def table(found: Iterable[Retrieved]) -> Iterator[str]:
    """Lines of Markdown."""
    columns = [f"{name} @{depth}" for name in RANKERS for depth in DEPTHS]
    yield f"| collection | tools | half | queries | {' | '.join(columns)} |"
    yield f"|---|---:|---|---:|{'---:|' * len(columns)}"
    for each in found:
        figures = [f"{share:.3f}" for name in RANKERS for share in each.shares[name]]
        yield f"| {each.collection} | {each.tools} | {each.part} | {each.queries} | {' | '.join(figures)} |"


if __name__ == "__main__":
    for line in table(retrieved([Path(argument) for argument in sys.argv[1:]])):
        print(line, flush=True)
