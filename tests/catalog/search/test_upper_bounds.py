"""What upper bounds leave out is never among the best; and they leave out most."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from mcproxy.catalog.search.upper_bounds import MAX_TERMS, Postings, UpperBounds

GREATEST = 14.5


def best(terms: Mapping[str, Postings], limit: int) -> set[int]:
    """The best, and equals of the last of them."""
    scores: dict[int, float] = {}
    for found in terms.values():
        for position, impact in found.items():
            scores[position] = scores.get(position, 0.0) + impact
    least = sorted(scores.values(), reverse=True)[:limit][-1]
    return {position for position, score in scores.items() if score >= least}


@pytest.mark.parametrize("seed", range(60))
def test_the_best_are_never_left_out(seed: int) -> None:
    random = Random(seed)
    tools, words, limit = random.randint(1, 300), random.randint(1, MAX_TERMS), random.randint(1, 50)
    terms = {
        f"w{number}": {
            position: random.choice([GREATEST, GREATEST * random.random() ** 3 + 1e-9])
            for position in random.sample(range(tools), random.randint(1, tools))
        }
        for number in range(words)
    }
    found = UpperBounds(tools, GREATEST).promising(terms, limit)
    if found is not None:
        assert found == sorted(set(found))
        assert best(terms, limit) <= set(found)


def test_most_tools_are_left_out() -> None:
    terms = {"rare": dict.fromkeys(range(30), 3.0), "frequent": dict.fromkeys(range(20, 900), 1.0)}
    assert UpperBounds(1000, GREATEST).promising(terms, 10) == [*range(20, 30)]


def test_where_too_few_can_be_told_apart_nothing_is_left_out() -> None:
    assert UpperBounds(100, GREATEST).promising({"word": {3: 1.0, 70: 2.0}}, 3) is None


@pytest.mark.parametrize("words", [1, MAX_TERMS])
def test_as_many_terms_as_a_query_may_have_fit_into_a_lane(words: int) -> None:
    terms = {f"w{number}": dict.fromkeys((0, 1, 2), GREATEST) for number in range(words)}
    terms["w0"] = {**terms["w0"], 3: GREATEST / 2}
    assert UpperBounds(5, GREATEST).promising(terms, 3) == [0, 1, 2]


def test_words_that_were_not_asked_for_lately_are_packed_anew() -> None:
    bounds = UpperBounds(50, GREATEST)
    first = bounds.promising({"word": dict.fromkeys(range(20), 1.0)}, 2)
    for number in range(3000):
        bounds.promising({f"w{number}": {1: 2.0}}, 1)
    assert len(bounds._packed) <= 1024
    assert bounds.promising({"word": dict.fromkeys(range(20), 1.0)}, 2) == first
