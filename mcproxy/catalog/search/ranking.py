"""Rank tools by how well they fit a query in plain words: BM25 over weighted fields, with stems and a few synonyms.

A `ToolIndex` is made from the tools that one caller may use, so that its statistics (how rare a word is, how long a
description) come from these alone. Knows neither callers nor endpoints; texts are data, and are only counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from math import log
from typing import Any, Final, NamedTuple

MAX_TEXT: Final = 4096
"""Characters of a field or a query that are read."""
MAX_QUERY_TERMS: Final = 64

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?(?:[a-z]|(?![A-Z])[^\W\d_])+|[0-9]+")
"""A part of `camelCase`, `PascalCase`, `snake_case` or `HTTPServer2`; letters other than A to Z begin no part."""

_STOP_WORDS: Final = frozenset(
    """
    a an and are as at be by can could do does for from has have how i if in into is it its let me my need of on or our
    please should so some such that the their them then there these this to us use used using want was we when
    where which who will with would you your
    """.split()  # noqa: SIM905  # a list of a word each line would be longer than the module
)

_VERBS: Final = (
    "get fetch read retrieve show view obtain load",
    "list enumerate browse show",
    "search find query lookup locate discover",
    "create add make new insert generate",
    "update edit modify change set patch",
    "delete remove erase drop destroy clear",
    "send post publish submit",
    "run execute invoke launch start",
    "stop cancel kill abort terminate end",
    "copy duplicate clone",
    "move rename transfer",
    "download save export",
    "upload import attach",
    "compute calculate determine",
    "convert translate transform",
    "compare diff",
    "check verify validate",
    "book reserve schedule",
    "buy purchase order",
)
"""Verbs that tools and their callers choose among for the same thing."""
_SYNONYM_WEIGHT: Final = 0.4

_SATURATION: Final = 1.2
"""BM25's k1: a word that comes ten times counts little more than one that comes thrice."""


class FieldWeight(NamedTuple):
    """A field's weight, and how much its length counts against it (BM25's b)."""

    weight: float
    length: float


FIELDS: Final[tuple[FieldWeight, ...]] = (
    FieldWeight(3.8, 0.6),
    FieldWeight(2.0, 0.3),
    FieldWeight(0.75, 0.3),
    FieldWeight(0.3, 0.3),
    FieldWeight(0.6, 0.8),
    FieldWeight(1.0, 0.5),
)
"""Those of a `ToolText`, in its order. Tuned by `tests.bench.retrieval` on the half of the queries that is for that."""


class ToolText(NamedTuple):
    """The words of a tool, by field."""

    name: str
    title: str = ""
    description: str = ""
    parameters: str = ""
    """The names of its parameters."""
    parameter_descriptions: str = ""
    upstream: str = ""


class Ranked(NamedTuple):
    position: int
    """In the sequence that the index was made from."""
    score: float


class ToolIndex:
    """The postings of a sequence of tools: for each stem, the tools that have it and its impact on their score."""

    def __init__(self, terms: Sequence[Sequence[Counter[str]]]) -> None:
        """`terms` are the counted stems of each tool, by field, as `terms_of` gives them."""
        self.size = len(terms)
        lengths = [[counts.total() for counts in tool] for tool in terms]
        averages = [sum(column) / max(1, len(terms)) or 1.0 for column in zip(*lengths, strict=True)]
        frequencies: dict[str, dict[int, float]] = {}
        for position, tool in enumerate(terms):
            for field, counts, length, average in zip(FIELDS, tool, lengths[position], averages, strict=True):
                worth = field.weight / (1 - field.length + field.length * length / average) if counts else 0.0
                for term, count in counts.items():
                    found = frequencies.setdefault(term, {})
                    found[position] = found.get(position, 0.0) + count * worth
        self._postings: dict[str, tuple[tuple[int, float], ...]] = {
            term: tuple(_impacts(found, _rarity(len(terms), len(found)))) for term, found in frequencies.items()
        }
        self._with_synonyms: dict[str, tuple[tuple[int, float], ...]] = {}
        """Those that were asked for: at most one for each word of `_VERBS`."""

    def search(self, query: str, limit: int) -> list[Ranked]:
        """The best `limit` tools, the best first; those that share no word with the query are none of them."""
        postings = [self._of(term) for term in dict.fromkeys(stems(query)[:MAX_QUERY_TERMS])]
        postings.sort(key=len, reverse=True)  # the longest is copied whole
        scores = dict(postings[0]) if postings else {}
        known = scores.get
        for further in postings[1:]:
            scores.update({position: known(position, 0.0) + impact for position, impact in further})
        # Of equals the first comes first: a sort keeps the order that they had. `heapq` takes thrice the time.
        best = sorted(sorted(scores), key=scores.__getitem__, reverse=True)[:limit]
        return [Ranked(position, scores[position]) for position in best]

    def _of(self, term: str) -> Sequence[tuple[int, float]]:
        """The postings of a term; with those of its synonyms, where it has any."""
        others = _synonyms().get(term)
        if others is None:
            return self._postings.get(term, ())
        found = self._with_synonyms.get(term)
        if found is None:
            found = self._with_synonyms[term] = tuple(self._joined(term, others))
        return found

    def _joined(self, term: str, others: Iterable[str]) -> Iterable[tuple[int, float]]:
        """The postings of a term and of its synonyms, of which a tool is given the best alone."""
        own = self._postings.get(term, ())
        best: dict[int, float] = {}
        for other in others:
            for position, impact in self._postings.get(other, ()):
                if impact * _SYNONYM_WEIGHT > best.get(position, 0.0):
                    best[position] = impact * _SYNONYM_WEIGHT
        for position, impact in own:
            best[position] = max(impact, best.get(position, 0.0))
        return best.items()


def terms_of(tool: ToolText) -> tuple[Counter[str], ...]:
    """How often each stem comes in each field."""
    return tuple(Counter(stems(text)) for text in tool)


def stems(text: str) -> list[str]:
    """The stems of a text's words, in order, without those that every sentence has."""
    words = (word.lower() for word in _WORD.findall(text[:MAX_TEXT]))
    return [_stem(word) for word in words if word not in _STOP_WORDS]


@lru_cache(16384)
def _stem(word: str) -> str:
    stem: str = _stemmer().stemWord(word)
    return stem


@cache
def _stemmer() -> Any:
    # It comes with the rules of thirty languages, 20 ms and 3 MB of them: only a search needs it.
    import snowballstemmer

    return snowballstemmer.stemmer("english")


@cache
def _synonyms() -> Mapping[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for group in _VERBS:
        alike = [_stem(word) for word in group.split()]
        for stem in alike:
            found.setdefault(stem, {}).update(dict.fromkeys(other for other in alike if other != stem))
    return {stem: tuple(others) for stem, others in found.items()}


def _rarity(tools: int, having: int) -> float:
    """BM25's inverse document frequency, which is never negative."""
    return log(1 + (tools - having + 0.5) / (having + 0.5))


def _impacts(frequencies: Mapping[int, float], rarity: float) -> Iterator[tuple[int, float]]:
    for position, frequency in frequencies.items():
        yield position, rarity * frequency * (_SATURATION + 1) / (_SATURATION + frequency)
