"""The twin of `mcproxy.catalog.views.view`."""

from __future__ import annotations

import msgspec

from mcproxy.catalog.views.view import View
from mcproxy.protocol.methods import Kind
from tests.catalog.views.samples import keys, listing, view_of
from tests.fakes.upstream import resource, tool


def own(view: View, uri: str) -> str | None:
    found = view.resource(uri)
    return found[1] if found else None


def test_a_view_knows_in_which_lists_it_differs() -> None:
    one = view_of({"a": {Kind.TOOLS: listing(Kind.TOOLS, tool("x")), Kind.PROMPTS: listing(Kind.PROMPTS)}})
    two = view_of({"a": {Kind.TOOLS: listing(Kind.TOOLS, tool("x", title="X")), Kind.PROMPTS: listing(Kind.PROMPTS)}})
    assert two.changed(one) == [Kind.TOOLS]


def test_a_page_is_encoded_once_and_shows_its_part_of_the_list() -> None:
    view = view_of({"a": {Kind.TOOLS: listing(Kind.TOOLS, *(tool(f"t{number}") for number in range(5)))}})
    pages = [view.page(Kind.TOOLS, start, 2) for start in (0, 2, 4, 6)]
    names = [[entry["name"] for entry in msgspec.json.decode(page)] for page in pages]
    assert names == [["a__t0", "a__t1"], ["a__t2", "a__t3"], ["a__t4"], []]
    assert view.page(Kind.TOOLS, 2, 2) is pages[1]
    assert msgspec.json.decode(view.page(Kind.PROMPTS, 0, 2)) == []


def test_of_pages_that_overlap_none_is_kept() -> None:
    view = view_of({"a": {Kind.TOOLS: listing(Kind.TOOLS, *(tool(f"t{number}") for number in range(5)))}})
    odd = view.page(Kind.TOOLS, 1, 2)
    assert [entry["name"] for entry in msgspec.json.decode(odd)] == ["a__t1", "a__t2"]
    assert view.page(Kind.TOOLS, 1, 2) is not odd


def test_an_excluded_resource_is_owned_by_no_upstream() -> None:
    options = {"a": {"resources": {"exclude": ["file:///secret*"]}}}
    view = view_of({"a": {Kind.RESOURCES: listing(Kind.RESOURCES, resource("file:///secret"))}}, options)
    assert keys(view, Kind.RESOURCES) == []
    assert view.resource("a+file:///secret") is None
    assert view.resource("a+file:///%73ecret/x") is None
    assert view.resource("a+file:///open") is not None


def test_r28_a_uri_that_is_listed_nowhere_goes_by_its_namespace() -> None:
    assert own(view_of({"a": {}, "b": {}}), "b+db://users?q=1") == "db://users?q=1"
    assert own(view_of({"a": {}, "b": {}}), "c+db://users?q=1") is None


def test_however_many_uris_are_looked_for_each_is_found_again() -> None:
    view = view_of({"a": {Kind.RESOURCES: listing(Kind.RESOURCES)}})
    looked_for = [f"m:{number}" for number in range(200)] * 2 + ["m:" + "x" * 5000] * 2
    assert [own(view, f"a+{uri}") for uri in looked_for] == looked_for


def test_r63_a_respelled_uri_finds_the_one_listed_resource_that_it_can_mean() -> None:
    listed = listing(Kind.RESOURCES, resource("http://Ex.com"), resource("file:///a b"))
    view = view_of({"a": {Kind.RESOURCES: listed}})
    assert own(view, "a+http://ex.com/") == "http://Ex.com"
    assert own(view, "a+file:///a%20b") == "file:///a b"
    assert own(view, "a+http://ex.com/other") == "http://ex.com/other"


def test_r63_an_exact_match_wins_and_an_ambiguous_spelling_passes_as_it_is() -> None:
    listed = listing(Kind.RESOURCES, resource("http://Ex.com"), resource("http://ex.com"))
    view = view_of({"a": {Kind.RESOURCES: listed}})
    assert own(view, "a+http://ex.com") == "http://ex.com"
    assert own(view, "a+http://Ex.com") == "http://Ex.com"
    assert own(view, "a+http://ex.com/") == "http://ex.com/"
