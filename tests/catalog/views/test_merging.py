"""The twin of `mcproxy.catalog.views.merging`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.call.identity import AGGREGATE
from mcproxy.catalog.instructions import INSTRUCTIONS_URI
from mcproxy.catalog.naming import layouts
from mcproxy.catalog.search.own_tools import HINT, SCHEMAS
from mcproxy.catalog.views.merging import merge
from mcproxy.catalog.views.snapshots import Listing
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Endpoint
from tests.catalog.views.samples import identity, keys, listing, skill_entry, view_of
from tests.fakes.upstream import settings_of, tool


def test_entries_come_in_the_order_of_the_configuration_then_the_upstreams() -> None:
    lists = {
        "b": {Kind.TOOLS: listing(Kind.TOOLS, tool("y"), tool("x"))},
        "a": {Kind.TOOLS: listing(Kind.TOOLS, tool("z"))},
    }
    assert keys(view_of(lists), Kind.TOOLS) == ["a__z", "b__y", "b__x"]


@given(
    st.dictionaries(st.sampled_from("abcd"), st.lists(st.text(max_size=5), unique=True), min_size=1),
    st.randoms(use_true_random=False),
)
def test_r29_the_order_of_connecting_changes_no_view(names: dict[str, list[str]], random: st.DataObject) -> None:
    lists = {
        name: {Kind.TOOLS: listing(Kind.TOOLS, *map(tool, tools)), Kind.PROMPTS: listing(Kind.PROMPTS)}
        for name, tools in names.items()
    }
    backwards = dict(reversed(lists.items()))
    assert view_of(lists).lists == view_of(backwards).lists
    assert view_of(lists).changed(view_of(backwards)) == []


def test_r32_instructions_are_joined_under_headings() -> None:
    identities = {"a": identity(instructions="Do A."), "b": identity(), "c": identity(instructions="Do C.")}
    lists: dict[str, dict[Kind, Listing]] = {"a": {}, "b": {}, "c": {}}
    directory = "Servers behind this gateway: a, b, c."
    assert view_of(lists, identities=identities).instructions == f"{directory}\n\n## a\n\nDo A.\n\n## c\n\nDo C."
    assert view_of(lists, identities=identities, endpoint="c").instructions == "Do C."
    assert view_of(lists, identities=identities, endpoint="b").instructions is None
    assert view_of(lists).instructions == directory


@pytest.mark.parametrize("options", [{}, {"prefix": ""}])
def test_r32_instructions_of_one_server_alone_pass_as_they_are_however_long(options: dict[str, object]) -> None:
    told = "Mind the gap. " * 400
    layout = layouts(settings_of({"a": options}).upstreams, 64, {})[AGGREGATE]
    view = merge(layout, {"a": identity(instructions=told)}, {})
    assert (view.instructions, view.whole_instructions) == (told, None)


def test_skills_of_one_name_and_uri_are_kept_apart_by_their_servers() -> None:
    entry = skill_entry("skill://refunds")
    view = view_of({name: {Kind.SKILLS: listing(Kind.SKILLS, entry)} for name in "ab"})
    assert keys(view, Kind.SKILLS) == ["a+skill://refunds/SKILL.md", "b+skill://refunds/SKILL.md"]


def test_instructions_of_an_endpoint_with_search_begin_with_its_tools_and_fit_what_hosts_read() -> None:
    endpoint = Endpoint.model_validate({"discovery": "search"})
    upstreams = settings_of({name: {} for name in "abc"}).upstreams
    layout = layouts(upstreams, 64, {"agent": endpoint})["/agent"]
    view = merge(layout, {name: identity(instructions=f"How to use {name}. " * 300) for name in "abc"}, {})
    assert view.instructions is not None
    assert all(name in view.instructions[:130] for name in SCHEMAS)
    assert INSTRUCTIONS_URI in view.instructions[:512]
    assert len(view.instructions) <= 2048
    assert merge(layout, {}, {}).instructions == f"{HINT}\n\nServers behind this gateway: a, b, c."
