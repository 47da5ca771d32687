"""How tools are ranked: by words of weighted fields, their stems and synonyms, and by nothing outside of the index."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.catalog.search.ranking import MAX_TEXT, Ranked, ToolIndex, ToolText, stems, terms_of

TOOLS = {
    "log": ToolText("git_log", description="Shows the history of commits.", parameters="repo limit"),
    "status": ToolText("git_status", description="Shows which files of a repository have changed."),
    "issue": ToolText("createIssue", "New issue", "Opens a ticket in the tracker.", "title body labels"),
    "delete": ToolText("remove_file", description="Removes a file for good.", parameters="path"),
    "weather": ToolText(
        "forecast", description="Weather of the coming days.", parameter_descriptions="A city, or a zip code.",
        upstream="meteo",
    ),
}  # fmt: skip
WORDS = ["git", "issue", "file", "weather", "remove", "commit", "show", "meteo", "xyzzy"]


def index(tools: Iterable[ToolText] = TOOLS.values()) -> ToolIndex:
    return ToolIndex([terms_of(tool) for tool in tools])


def found(query: str, limit: int = 10) -> list[str]:
    names = list(TOOLS)
    return [names[ranked.position] for ranked in index().search(query, limit)]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("commits", "log"),
        ("the commit history", "log"),
        ("create an issue", "issue"),
        ("delete files", "delete"),
        ("what will the weather be", "weather"),
        ("zip codes", "weather"),
        ("meteo", "weather"),
        ("GitStatus", "status"),
    ],
)
def test_the_best_tool_comes_first(query: str, best: str) -> None:
    assert found(query)[0] == best


def test_a_tool_that_shares_no_word_with_the_query_is_not_found() -> None:
    assert found("xyzzy") == []
    assert found("the of and") == []
    assert found("") == []


def test_no_more_are_found_than_asked_for() -> None:
    assert len(found("git file repository commits", 2)) == 2


def test_a_word_in_a_name_counts_for_more_than_one_in_a_description() -> None:
    tools = [ToolText("other", description="About mail"), ToolText("mail", description="About other")]
    assert [ranked.position for ranked in index(tools).search("mail", 2)] == [1, 0]


def test_a_synonym_counts_for_less_than_the_word_itself() -> None:
    tools = [ToolText("remove_page"), ToolText("delete_page")]
    assert [ranked.position for ranked in index(tools).search("delete", 2)] == [1, 0]


def test_a_word_that_is_repeated_without_end_counts_little_more() -> None:
    """Whoever writes a description cannot push its tool up by repeating a word."""
    plain = ToolText("send", description="Sends a mail.")
    stuffed = ToolText("other", description="mail " * 500)
    (best, *_) = index([stuffed, plain]).search("send mail", 2)
    assert best.position == 1


def test_equal_tools_come_in_the_order_of_the_list() -> None:
    assert [ranked.position for ranked in index([ToolText("a_b"), ToolText("a_c")]).search("a_", 5)] == []
    assert [ranked.position for ranked in index([ToolText("x_b"), ToolText("x_c")]).search("x", 5)] == [0, 1]


def test_names_are_split_at_cases_and_underscores_and_every_script_has_words() -> None:
    assert stems("getHTTPServer2 create_issue") == ["get", "http", "server", "2", "creat", "issu"]
    assert stems("Dateien öffnen") == ["dateien", "öffnen"]
    assert stems("搜索 文件") == ["搜索", "文件"]


def test_of_a_long_text_the_beginning_counts() -> None:
    assert stems("x" + " y" * MAX_TEXT)[:2] == ["x", "y"]
    assert len(stems("y " * MAX_TEXT)) == MAX_TEXT // 2


def test_an_index_of_no_tools_finds_nothing() -> None:
    assert index([]).search("anything", 5) == []


tools = st.lists(
    st.builds(ToolText, *(st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join) for _ in ToolText._fields)),
    max_size=6,
)


@given(tools, st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join), st.integers(1, 8))
def test_what_is_found_is_sorted_distinct_and_has_a_score(given: list[ToolText], query: str, limit: int) -> None:
    ranked = index(given).search(query, limit)
    assert len(ranked) <= limit
    assert all(one.score > 0 for one in ranked)
    assert ranked == sorted(ranked, key=lambda one: (-one.score, one.position))
    assert len({one.position for one in ranked}) == len(ranked)
    assert {Ranked(one.position, one.score) for one in ranked} == set(ranked)


def test_a_search_of_a_thousand_tools_is_a_few_thousand_steps() -> None:
    """Counted in steps of the interpreter, since no clock is fair: a millisecond is some thirty thousand of them."""
    verbs, nouns = ["get", "create", "list", "delete", "update"], ["issue", "file", "page", "user", "order"]
    many = [
        ToolText(f"{verbs[n % 5]}_{nouns[n // 5 % 5]}_{n}", description=f"Will {verbs[n % 5]} the {nouns[n // 5 % 5]}.")
        for n in range(1000)
    ]
    made = index(many)
    assert traced_lines(made, "please create a new issue for the user who wants to fetch files") < 30_000


def traced_lines(made: ToolIndex, query: str) -> int:
    lines = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]  # its own type is not importable
    try:
        made.search(query, 10)
    finally:
        sys.settrace(before)
    return lines


def test_a_question_counts_as_what_it_asks_for() -> None:
    index = ToolIndex([terms_of(ToolText("weather")), terms_of(ToolText("what_is_it"))])
    assert [found.position for found in index.search("what is that?", 5)] == [1]


def test_the_same_search_finds_the_same_each_time() -> None:
    index = ToolIndex([terms_of(ToolText(name)) for name in ("remove_file", "delete_file", "read_file", "file")])
    first = index.search("delete a file", 5)
    assert [found.position for found in first] == [1, 0, 3, 2]
    assert index.search("delete a file", 5) == first
