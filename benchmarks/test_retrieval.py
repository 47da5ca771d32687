"""The benchmark of retrieval: its measure, its two reference rankers, and its table."""

from __future__ import annotations

import pytest

from benchmarks.collections import Collection, Query
from benchmarks.retrieval import RANKERS, Retrieved, halves, hits, retrieved, table, together
from mcproxy.catalog.search.ranking import ToolText

TOOLS = [
    ToolText("git_log", description="Shows the history of commits."),
    ToolText("remove_file", description="Deletes a file for good."),
    ToolText("forecast", description="Weather of the coming days.", upstream="meteo"),
]
NAMES = [tool.name for tool in TOOLS]


@pytest.mark.parametrize("ranker", RANKERS)
@pytest.mark.parametrize(("query", "best"), [("commits", 0), ("deletes a file", 1), ("weather, please!", 2)])
def test_each_ranker_finds_a_tool_by_its_own_words(ranker: str, query: str, best: int) -> None:
    assert RANKERS[ranker](TOOLS)(query, 1) == [best]


@pytest.mark.parametrize("ranker", RANKERS)
def test_no_ranker_finds_a_tool_by_no_word(ranker: str) -> None:
    assert RANKERS[ranker](TOOLS)('"!', 5) == []


def test_hits_are_the_share_of_the_right_tools_that_fit() -> None:
    queries = [Query("a", frozenset({"git_log"})), Query("b", frozenset({"git_log", "forecast"}))]

    def first_two(query: str, limit: int) -> list[int]:
        return [0, 1][:limit]

    assert hits(first_two, NAMES, queries, 2) == 0.75
    assert hits(first_two, NAMES, queries, 1) == 1
    assert hits(first_two, NAMES, [], 1) == 0


def test_each_query_is_in_one_half() -> None:
    queries = [Query(f"query {number}", frozenset()) for number in range(50)]
    split = halves(Collection({}, queries))
    assert sorted(query.text for half in split.values() for query in half) == sorted(query.text for query in queries)


def found(part: str, queries: int, share: float) -> Retrieved:
    return Retrieved("plugins", 7, part, queries, {name: [share, 1.0] for name in RANKERS})


def test_the_parts_of_a_collection_add_up_by_their_queries() -> None:
    assert together([found("tuning", 3, 0.25), found("held out", 1, 0.75)]) == found("all", 4, 0.375)


def test_the_table_has_a_line_for_each_part() -> None:
    lines = list(table([found("all", 4, 0.5)]))
    assert {line.count("|") for line in lines} == {11}
    assert lines[-1] == "| plugins | 7 | all | 4 | 0.500 | 1.000 | 0.500 | 1.000 | 0.500 | 1.000 |"


def test_a_collection_that_is_not_there_has_no_line() -> None:
    assert list(retrieved([])) == []
