"""The reading of a search: what is asked, and where."""

from __future__ import annotations

from benchmarks.answers import read, reply
from benchmarks.searching import QUERIES, TOOLS, called, searched


def test_a_call_goes_to_the_endpoint_of_all_and_a_search_to_the_one_with_search() -> None:
    assert called(7).requests[0].startswith("POST /mcp HTTP/1.1\r\n")
    assert searched(7).requests[0].startswith("POST /mcp/agent HTTP/1.1\r\n")
    assert QUERIES[0] in searched(7).requests[0]


def test_no_query_is_asked_twice_in_a_round() -> None:
    requests = searched(7).requests
    assert len(set(requests)) == len(requests) == len(set(QUERIES)) == 1050


def test_some_of_the_tools_have_every_word_of_the_query_and_most_have_none() -> None:
    listed = reply(read(b'{"id":1,"method":"tools/list"}'), TOOLS)
    text = str(listed)
    assert sum(query in text for query in QUERIES) == TOOLS
    assert 0 < text.count("of a customer") < TOOLS / 5
