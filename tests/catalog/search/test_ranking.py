"""How tools are ranked: by words of weighted fields, their stems and synonyms, and by nothing outside of the index."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.catalog.search.ranking import (
    MAX_QUERY_TERMS,
    MAX_TEXT,
    POSTINGS_OF_STEP,
    STEP,
    ToolIndex,
    ToolText,
    stems,
    terms_of,
)

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
    return [names[position] for position in index().search(query, limit)]


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
    assert index(tools).search("mail", 2) == [1, 0]


def test_a_synonym_counts_for_less_than_the_word_itself() -> None:
    tools = [ToolText("remove_page"), ToolText("delete_page")]
    assert index(tools).search("delete", 2) == [1, 0]


def test_a_word_that_is_repeated_without_end_counts_little_more() -> None:
    """Whoever writes a description cannot push its tool up by repeating a word."""
    plain = ToolText("send", description="Sends a mail.")
    stuffed = ToolText("other", description="mail " * 500)
    (best, *_) = index([stuffed, plain]).search("send mail", 2)
    assert best == 1


def test_equal_tools_come_in_the_order_of_the_list() -> None:
    assert index([ToolText("a_b"), ToolText("a_c")]).search("a_", 5) == []
    assert index([ToolText("x_b"), ToolText("x_c")]).search("x", 5) == [0, 1]


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


def plainly_ranked(given: list[ToolText], query: str, limit: int) -> list[int]:
    """The search as it is defined: every tool is scored, and those that share a word with the query are found."""
    made = index(given)
    asked = [term for term in dict.fromkeys(stems(query)) if term in made._terms][:MAX_QUERY_TERMS]
    packed = [made._packed[term].lanes.to_bytes(2 * len(given), sys.byteorder) for term in asked]
    scores = list(map(sum, zip(*(memoryview(lanes).cast("H") for lanes in packed), strict=True)))
    found = [position for position, score in enumerate(scores) if score]
    return sorted(found, key=lambda position: (-scores[position], position))[:limit]


@given(tools, st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join), st.integers(1, 8))
def test_a_search_of_few_tools_finds_what_scoring_them_all_does(given: list[ToolText], query: str, limit: int) -> None:
    assert index(given).search(query, limit) == plainly_ranked(given, query, limit)


@pytest.mark.parametrize("seed", range(40))
def test_a_search_of_many_tools_finds_what_scoring_them_all_does(seed: int) -> None:
    """Words as rare as those of a language are: of some, half of the tools have one; others come once."""
    random = Random(seed)
    words, limit = random.randint(1, 60), random.randint(1, 20)

    def text(most: int) -> str:
        return " ".join(f"w{int(min(random.paretovariate(0.6), 150))}" for _ in range(random.randrange(most)))

    given = [ToolText(text(4), text(2), text(12), text(4), text(9), text(2)) for _ in range(200)]
    query = " ".join([text(2 * words), *random.sample(["get", "delete", "create", "w1", "w2", "w3"], 3)])
    assert index(given).search(query, limit) == plainly_ranked(given, query, limit)


def test_of_many_equal_tools_the_first_are_found() -> None:
    assert index([ToolText("same", description="one word")] * 300).search("same word", 4) == [0, 1, 2, 3]


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
    assert index.search("what is that?", 5) == [1]


def test_the_same_search_finds_the_same_each_time() -> None:
    index = ToolIndex([terms_of(ToolText(name)) for name in ("remove_file", "delete_file", "read_file", "file")])
    first = index.search("delete a file", 5)
    assert first == [1, 0, 3, 2]
    assert index.search("delete a file", 5) == first


class WatchedTools(list[tuple[Counter[str], ...]]):
    """Counts the tools that are read from it."""

    def __init__(self, tools: Iterable[tuple[Counter[str], ...]]) -> None:
        super().__init__(tools)
        self.read = 0

    def __iter__(self) -> Iterator[tuple[Counter[str], ...]]:
        for tool in super().__iter__():
            self.read += 1
            yield tool


def test_an_index_is_made_in_steps_of_few_tools_and_is_the_same() -> None:
    tools = WatchedTools(terms_of(ToolText(f"tool_{number}", f"word{number % 7}")) for number in range(5 * STEP))
    steps, seen = ToolIndex.in_steps(tools), 0
    while True:
        try:
            next(steps)
        except StopIteration as made:
            index = made.value
            break
        assert tools.read - seen <= STEP
        seen = tools.read
    assert tools.read == 2 * len(tools)
    assert index.search("word3", 10) == ToolIndex(tools).search("word3", 10) != []


def test_postings_are_weighed_in_steps_too() -> None:
    words = " ".join(f"word{letter}" for letter in "bcdfghjklm")
    tools = [terms_of(ToolText(words)) for _ in range(POSTINGS_OF_STEP // 5)]
    alone = 2 * -(-len(tools) // STEP)
    assert len(list(ToolIndex.in_steps(tools))) == alone + 2
