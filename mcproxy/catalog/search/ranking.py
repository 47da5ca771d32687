"""Rank tools by how well they fit a query in plain words: BM25 over weighted fields, with stems and a few synonyms.

A `ToolIndex` is made from the tools that one caller may use, so that its statistics (how rare a word is, how long a
description) come from these alone. Knows neither callers nor endpoints; texts are data, and are only counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, islice
from math import log
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from mcproxy.catalog.search.packed_scores import MAX_TERMS, PackedTerm, Postings, best, packed
from mcproxy.protocol.memo import Results, remember_short

MAX_TEXT: Final = 4096
"""Characters of a field or a query that are read."""
STEP: Final = 50
"""Tools that are indexed before other tasks get a turn: some two milliseconds."""
POSTINGS_OF_STEP: Final = 5000
"""Postings that are weighed before other tasks get a turn."""
MAX_QUERY_TERMS: Final = MAX_TERMS
_LONGEST_REMEMBERED: Final = 64
"""Characters of a part of a text, or of a word, whose stems are remembered."""

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
"""Groups of verbs that tools and callers use for the same thing."""
_SYNONYM_WEIGHT: Final = 0.4

_SATURATION: Final = 1.2
"""BM25's k1: a word that comes ten times counts little more than one that comes thrice."""

_MAX_PACKED: Final = 1024
"""Terms that an index keeps packed, two bytes for each tool; those that were asked for."""
_NONE: Final[Postings] = MappingProxyType({})


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
"""The fields of a `ToolText`, in its order. Tuned by `benchmarks.retrieval` on one half of the queries."""


class ToolText(NamedTuple):
    """The words of a tool, by field."""

    name: str
    title: str = ""
    description: str = ""
    parameters: str = ""
    """The names of its parameters."""
    parameter_descriptions: str = ""
    upstream: str = ""


class ToolIndex:
    """The postings of a sequence of tools: for each stem, the tools that have it and its impact on their score."""

    def __init__(self, terms: Sequence[Sequence[Counter[str]]]) -> None:
        """`terms` are the counted stems of each tool, by field, as `terms_of` gives them."""
        for _ in self._build(terms):
            pass

    @classmethod
    def in_steps(cls, terms: Sequence[Sequence[Counter[str]]]) -> Generator[None, None, ToolIndex]:
        """The same index, made in steps of a few milliseconds: it is what the generator returns."""
        made = cls.__new__(cls)
        yield from made._build(terms)
        return made

    def _build(self, terms: Sequence[Sequence[Counter[str]]]) -> Iterator[None]:
        """Yields after each STEP of tools, and of postings."""
        self.size = len(terms)
        lengths: list[list[int]] = []
        for position, tool in enumerate(terms):
            if position % STEP == 0:
                yield
            lengths.append([counts.total() for counts in tool])
        averages = [sum(column) / max(1, len(terms)) or 1.0 for column in zip(*lengths, strict=True)]
        frequencies: dict[str, dict[int, float]] = {}
        for position, tool in enumerate(terms):
            if position % STEP == 0:
                yield
            for field, counts, length, average in zip(FIELDS, tool, lengths[position], averages, strict=True):
                worth = field.weight / (1 - field.length + field.length * length / average) if counts else 0.0
                for term, count in counts.items():
                    found = frequencies.setdefault(term, {})
                    found[position] = found.get(position, 0.0) + count * worth
        postings: dict[str, Postings] = {}
        greatest, scored = 0.0, 0
        for term, found in frequencies.items():
            postings[term] = impacts = _impacts(found, _rarity(len(terms), len(found)))
            greatest = max(greatest, max(impacts.values()))
            scored += len(found)
            if scored >= POSTINGS_OF_STEP:
                scored = 0
                yield
        synonyms = (term for term, others in _synonyms().items() if not postings.keys().isdisjoint(others))
        self._terms = frozenset(chain(postings, synonyms))
        """Those that a tool has, or a synonym of."""
        self._packed = Results(partial(_packed, postings, self.size, greatest), _MAX_PACKED)

    def search(self, query: str, limit: int) -> list[int]:
        """The positions of the best `limit` tools, the best first; those that share no word with the query are none."""
        asked = dict.fromkeys(filter(self._terms.__contains__, stems(query)))
        terms = list(map(self._packed.__getitem__, islice(asked, MAX_QUERY_TERMS)))
        return best(terms, self.size, limit) if terms else []


def _packed(postings: Mapping[str, Postings], tools: int, greatest: float, term: str) -> PackedTerm:
    """A term of an index, with its synonyms; each tool gets the best of them."""
    found: dict[int, float] = {}
    for other in _synonyms().get(term, ()):
        for position, impact in postings.get(other, _NONE).items():
            found[position] = max(impact * _SYNONYM_WEIGHT, found.get(position, 0.0))
    for position, impact in postings.get(term, _NONE).items():
        found[position] = max(impact, found.get(position, 0.0))
    return packed(found, tools, greatest)


def terms_of(tool: ToolText) -> tuple[Counter[str], ...]:
    """How often each stem occurs in each field."""
    return tuple(Counter(stems(text)) for text in tool)


def stems(text: str) -> list[str]:
    """The stems of a text's words, in order, without stop words."""
    return list(chain.from_iterable(map(_stems_by_token.__getitem__, text[:MAX_TEXT].split())))


def _stems(token: str) -> tuple[str, ...]:
    """The stems of a text without white space."""
    words = (word.lower() for word in _WORD.findall(token))
    return tuple(_stem(word) for word in words if word not in _STOP_WORDS)


_stems_by_token: Final = Results(_stems, 16384, _LONGEST_REMEMBERED)


@remember_short(_LONGEST_REMEMBERED, 16384)
def _stem(word: str) -> str:
    stem: str = _stemmer().stemWord(word)
    return stem


@cache
def _stemmer() -> Any:
    # The library has the rules of thirty languages, 20 ms and 3 MB: only a search needs it.
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


def _impacts(frequencies: Mapping[int, float], rarity: float) -> Postings:
    return {
        position: rarity * frequency * (_SATURATION + 1) / (_SATURATION + frequency)
        for position, frequency in frequencies.items()
    }
