"""Scores that are added up for all tools at once: the best tools are found, and those that have no term never."""

from __future__ import annotations

from math import ceil
from random import Random

import pytest

from mcproxy.catalog.search.packed_scores import MAX_TERMS, Postings, best, packed

GREATEST = 14.5


def found(terms: list[Postings], tools: int, limit: int) -> list[int]:
    return best([packed(postings, tools, GREATEST) for postings in terms], tools, limit)


def plainly_found(terms: list[Postings], limit: int) -> list[int]:
    """The best as they are defined: each impact in thousandths of the greatest, rounded up."""
    scores: dict[int, int] = {}
    for postings in terms:
        for position, impact in postings.items():
            scores[position] = scores.get(position, 0) + min(1000, ceil(impact * (1000 / GREATEST)))
    return sorted(scores, key=lambda position: (-scores[position], position))[:limit]


@pytest.mark.parametrize("seed", range(60))
def test_the_best_are_found_in_their_order(seed: int) -> None:
    random = Random(seed)
    tools, limit = random.randint(1, 300), random.randint(1, 50)
    terms: list[Postings] = [
        {
            position: random.choice([GREATEST, GREATEST * random.random() ** 3 + 1e-9])
            for position in random.sample(range(tools), random.randint(0, tools))
        }
        for _ in range(random.randint(1, MAX_TERMS))
    ]
    assert found(terms, tools, limit) == plainly_found(terms, limit)


@pytest.mark.parametrize("strong", [1, 9, 10, 11])
@pytest.mark.parametrize("seed", range(6))
def test_a_word_that_nearly_all_have_decides_where_too_few_have_others(seed: int, strong: int) -> None:
    random = Random(seed)
    rare = dict.fromkeys(random.sample(range(400), strong), GREATEST)
    common = {position: GREATEST * random.uniform(0.0001, 0.003) for position in random.sample(range(400), 390)}
    assert found([rare, common], 400, 10) == plainly_found([rare, common], 10)


@pytest.mark.parametrize("tools", [1, 2, 3])
def test_a_limit_that_no_index_reaches_finds_all_that_have_a_term(tools: int) -> None:
    assert found([{tools - 1: 1e-9}], tools, 50) == [tools - 1]


def test_terms_that_no_tool_has_find_nothing() -> None:
    assert found([{}, {}], 7, 5) == []


@pytest.mark.parametrize("words", [1, MAX_TERMS])
def test_as_many_terms_as_a_query_may_have_fit_into_a_lane(words: int) -> None:
    terms: list[Postings] = [{0: GREATEST, 1: GREATEST, 4: GREATEST}] * (words - 1)
    terms.append({4: GREATEST, 3: GREATEST / 2})
    assert found(terms, 5, 3) == plainly_found(terms, 3)
    assert found(terms, 5, 3)[0] == 4
