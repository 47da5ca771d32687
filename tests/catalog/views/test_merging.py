"""The twin of `mcproxy.catalog.views.merging`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcproxy.call.identity import AGGREGATE, ANONYMOUS, Caller
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.naming import Layout, layouts
from mcproxy.catalog.views.merging import (
    Exposure,
    Listing,
    View,
    agreed,
    capabilities,
    expose,
    merge,
    read_listing,
    relayed,
)
from mcproxy.protocol.eras import (
    LATEST_HANDSHAKE,
    STATELESS_VERSIONS,
    V2024_11_05,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
    Era,
)
from mcproxy.protocol.headers import MirroredParameter
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import SKILLS, Kind
from mcproxy.protocol.tasks import Support
from tests.fakes.upstream import resource, settings_of, tool

KNOWN: Final[dict[str, object]] = {f"io.modelcontextprotocol/{name}": {} for name in ("ui", "tasks", "skills")}
"""Extensions that work with any number of upstreams."""


def identity(
    capabilities: Mapping[str, object] | None = None, instructions: str | None = None, version: str = LATEST_HANDSHAKE
) -> ServerIdentity:
    declared = {key: raw(value) for key, value in (capabilities or {}).items()}
    era = Era.STATELESS if version in STATELESS_VERSIONS else Era.HANDSHAKE
    return ServerIdentity(era, version, declared, instructions=instructions)


def union(*identities: ServerIdentity | None) -> object:
    return msgspec.json.decode(raw(capabilities(identities)))


def listing(kind: Kind, *entries: object) -> Listing:
    return read_listing("up", kind, [raw(entry) for entry in entries])


def view_of(
    lists: Mapping[str, Mapping[Kind, Listing]],
    options: Mapping[str, Mapping[str, object]] | None = None,
    endpoint: str = AGGREGATE,
    identities: Mapping[str, ServerIdentity | None] | None = None,
) -> View:
    """The view of upstreams that are configured in alphabetical order."""
    settings = settings_of({name: (options or {}).get(name, {}) for name in sorted(lists)})
    layout: Layout = layouts(settings.upstreams, 64)[endpoint]
    exposures: dict[str, dict[Kind, Exposure]] = {
        name: {kind: expose(layout.space(name), kind, entries) for kind, entries in kinds.items()}
        for name, kinds in lists.items()
        if layout.shows(name)
    }
    return merge(layout, identities or {}, exposures)


def entries(view: View, kind: Kind) -> list[dict[str, object]]:
    return [msgspec.json.decode(shown.entry) for shown in view.lists[kind]]


def keys(view: View, kind: Kind) -> list[str]:
    return [shown.key for shown in view.lists[kind]]


def test_entries_without_a_key_or_with_one_twice_are_dropped_and_reported() -> None:
    items = [raw(tool("a")), raw({"name": 7}), raw({}), Raw(b"[]"), Raw(b"null"), raw(tool("a", title="again"))]
    read = read_listing("up", Kind.TOOLS, items)
    assert [entry.key for entry in read.entries] == ["a"]
    assert bytes(read.entries[0].data) == bytes(raw(tool("a")))
    assert [entry.name for entry in read.refused] == ["", "", "", "", "a"]


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


def test_r32_an_entry_keeps_what_is_unknown() -> None:
    entry = tool("x", icons=[{"src": "a"}], outputSchema={"k": 1}, _meta={"m": [1]}, future={"deep": None})
    view = view_of({"a": {Kind.TOOLS: listing(Kind.TOOLS, entry)}})
    assert entries(view, Kind.TOOLS) == [{**entry, "name": "a__x"}]


def test_r33_on_its_own_endpoint_an_entry_is_the_very_same() -> None:
    data = Raw(b'{"name" : "x",  "n":1.50}')
    view = view_of({"a": {Kind.TOOLS: read_listing("a", Kind.TOOLS, [data])}}, endpoint="a")
    assert bytes(view.lists[Kind.TOOLS][0].entry) == bytes(data)


def test_resources_and_templates_are_exposed_by_uri_and_keep_their_names() -> None:
    template = {"uriTemplate": "db://{table}{?q}", "name": "rows"}
    view = view_of(
        {
            "a": {
                Kind.RESOURCES: listing(Kind.RESOURCES, resource("file:///x")),
                Kind.TEMPLATES: listing(Kind.TEMPLATES, template),
            }
        }
    )
    assert entries(view, Kind.RESOURCES) == [{"uri": "a+file:///x", "name": "a resource"}]
    assert entries(view, Kind.TEMPLATES) == [{"uriTemplate": "a+db://{table}{?q}", "name": "rows"}]


def test_overrides_name_title_and_describe() -> None:
    options = {"a": {"tools": {"overrides": {"x": {"name": "n", "title": "T", "description": "D"}}}}}
    view = view_of({"a": {Kind.TOOLS: listing(Kind.TOOLS, {"name": "x", "title": "old"})}}, options)
    assert entries(view, Kind.TOOLS) == [{"name": "a__n", "title": "T", "description": "D"}]
    shown = view.find(Kind.TOOLS, "a__n")
    assert shown is not None
    assert shown.own == "x"


def test_an_excluded_tool_collides_with_nothing() -> None:
    options = {"a": {"tools": {"exclude": ["x_y"]}}}
    view = view_of({"a": {Kind.TOOLS: listing(Kind.TOOLS, tool("x_y"), tool("x.y"))}}, options)
    shown = view.find(Kind.TOOLS, "a__x_y")
    assert shown is not None
    assert shown.own == "x.y"
    assert view.refused == ()


def test_an_excluded_resource_is_owned_by_no_upstream() -> None:
    options = {"a": {"resources": {"exclude": ["file:///secret*"]}}}
    view = view_of({"a": {Kind.RESOURCES: listing(Kind.RESOURCES, resource("file:///secret"))}}, options)
    assert keys(view, Kind.RESOURCES) == []
    assert view.resource("a+file:///secret") is None
    assert view.resource("a+file:///%73ecret/x") is None
    assert view.resource("a+file:///open") is not None


def own(view: View, uri: str) -> str | None:
    found = view.resource(uri)
    return found[1] if found else None


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


def test_r32_instructions_are_joined_under_headings() -> None:
    identities = {"a": identity(instructions="Do A."), "b": identity(), "c": identity(instructions="Do C.")}
    lists: dict[str, dict[Kind, Listing]] = {"a": {}, "b": {}, "c": {}}
    assert view_of(lists, identities=identities).instructions == "## a\n\nDo A.\n\n## c\n\nDo C."
    assert view_of(lists, identities=identities, endpoint="c").instructions == "Do C."
    assert view_of(lists, identities=identities, endpoint="b").instructions is None
    assert view_of(lists).instructions is None


def test_r20_capabilities_are_the_union_with_what_the_gateway_does_itself() -> None:
    one = identity({"tools": {}, "resources": {"subscribe": False}})
    two = identity({"resources": {"subscribe": True}, "logging": {}})
    assert union(one, two) == {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "logging": {},
    }


def test_r20_subscribing_is_offered_only_where_an_upstream_offers_it() -> None:
    assert union(identity({"resources": {}})) == {"resources": {"listChanged": True}}


def test_r1_an_upstream_that_never_connected_counts_as_offering_everything() -> None:
    assert union(None) == {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "prompts": {"listChanged": True},
        "logging": {},
        "completions": {},
    }


def test_unknown_capabilities_pass_and_are_merged() -> None:
    one = identity({"extensions": {"io.a/x": {"v": 1}}, "novel": {"p": True}})
    two = identity({"extensions": {"io.a/x": {"v": 2}, "io.b/y": {}}, "experimental": {"e": {}}})
    assert union(one, two) == {
        "extensions": {"io.a/x": {"v": 1}, "io.b/y": {}},
        "novel": {"p": True},
        "experimental": {"e": {}},
    }


EXTENDED: Final[dict[str, object]] = {"io.modelcontextprotocol/tasks": {}, "io.a/x": {}}
TASKED: Final[dict[str, object]] = {"tasks": {"list": {}}, "extensions": EXTENDED}


@pytest.mark.parametrize(
    ("version", "client", "kept"),
    [
        (V2025_11_25, V2025_11_25, {"tasks": {"list": {}}, "extensions": {"io.a/x": {}}}),
        (V2025_11_25, V2025_06_18, {"extensions": {"io.a/x": {}}}),
        (V2025_11_25, V2026_07_28, {"extensions": {"io.a/x": {}}}),
        (V2026_07_28, V2026_07_28, {"extensions": EXTENDED}),
        (V2026_07_28, V2025_11_25, {"extensions": {"io.a/x": {}}}),
        (V2025_06_18, V2025_06_18, {"extensions": {"io.a/x": {}}}),
    ],
)
def test_tasks_are_shown_to_clients_of_their_own_kind_alone(version: str, client: str, kept: object) -> None:
    assert union(relayed(identity(TASKED, version=version), client, owned=True)) == kept


def test_extensions_are_shown_where_the_upstream_hears_what_the_client_declares() -> None:
    handshaken, stateless = identity(TASKED, version=V2025_06_18), identity(TASKED, version=V2026_07_28)
    assert union(relayed(handshaken, V2025_06_18, owned=False)) == {}
    assert union(relayed(handshaken, V2025_06_18, owned=True)) == {"extensions": {"io.a/x": {}}}
    assert union(relayed(stateless, V2025_06_18, owned=False)) == {"extensions": {"io.a/x": {}}}


def test_a_handshake_settles_on_the_extensions_that_both_sides_declare() -> None:
    offered: dict[str, Raw] = {"tools": raw({}), "extensions": raw({"io.a/x": {}, "io.b/y": {}})}
    declared = {"extensions": raw({"io.b/y": {}, "io.c/z": {}})}
    old, new = (Caller(ANONYMOUS, version, declared) for version in (V2025_11_25, V2026_07_28))
    assert agreed(offered, old) == {"tools": raw({}), "extensions": raw({"io.b/y": {}})}
    assert agreed(offered, new) == offered
    assert agreed(offered, Caller(ANONYMOUS, V2025_11_25)) == {"tools": raw({})}


def test_what_a_tool_says_of_tasks_is_shown_to_callers_that_may_call_it_as_one() -> None:
    space = layouts(settings_of({"up": {}}).upstreams, 64)[AGGREGATE].space("up")
    said = {"taskSupport": "required", "other": 1}
    optional, forbidden = {"taskSupport": "optional"}, {"taskSupport": "forbidden"}
    tools = listing(
        Kind.TOOLS, tool("a", execution=said), tool("b", execution=optional), tool("c", execution=forbidden)
    )
    told, untold = expose(space, Kind.TOOLS, tools, tasks=True).shown, expose(space, Kind.TOOLS, tools).shown
    assert msgspec.json.decode(told[0].entry)["execution"] == said
    assert msgspec.json.decode(untold[0].entry)["execution"] == {"other": 1}
    assert "execution" not in msgspec.json.decode(untold[1].entry)
    assert msgspec.json.decode(untold[2].entry)["execution"] == forbidden
    assert [shown.task_support for shown in untold] == [Support.REQUIRED, Support.OPTIONAL, Support.FORBIDDEN]


def test_an_entry_knows_which_parameters_of_its_tool_come_in_headers() -> None:
    space = layouts(settings_of({"up": {}}).upstreams, 64)[AGGREGATE].space("up")
    region = {"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    (shown,) = expose(space, Kind.TOOLS, listing(Kind.TOOLS, tool("t", inputSchema=region))).shown
    assert shown.mirrored == (MirroredParameter("Mcp-Param-Region", ("region",), "string"),)


def test_of_a_definition_that_clients_must_reject_nothing_comes_in_headers() -> None:
    space = layouts(settings_of({"up": {}}).upstreams, 64)[AGGREGATE].space("up")
    broken = {"properties": {"region": {"type": "number", "x-mcp-header": "Region"}}}
    (shown,) = expose(space, Kind.TOOLS, listing(Kind.TOOLS, tool("t", inputSchema=broken))).shown
    assert shown.mirrored == ()


def test_malformed_capabilities_are_left_out() -> None:
    assert union(identity({"tools": [], "prompts": {}})) == {"prompts": {"listChanged": True}}


def test_completion_of_the_first_revision_has_no_capability_and_is_offered() -> None:
    assert union(identity({"prompts": {}}, version=V2024_11_05)) == {
        "prompts": {"listChanged": True},
        "completions": {},
    }


def test_r1_an_entry_nested_too_deeply_is_dropped_and_reported() -> None:
    fine = Raw(b'{"name":"fine","text":"' + b"[" * 300 + b'","inputSchema":' + b"[" * 150 + b"]" * 150 + b"}")
    deep = Raw(b'{"name":"deep","inputSchema":' + b"[" * 200 + b"]" * 200 + b"}")
    read = read_listing("up", Kind.TOOLS, [fine, deep])
    assert [entry.key for entry in read.entries] == ["fine"]
    assert [(refused.name, refused.why) for refused in read.refused] == [("deep", "it nests deeper than 200 levels")]


@pytest.mark.parametrize(
    ("upstreams", "left"),
    [
        (["a"], {**KNOWN, "io.x/novel": {}}),
        (["a", "b"], KNOWN),
    ],
)
def test_an_extension_is_offered_only_where_it_works(upstreams: list[str], left: dict[str, object]) -> None:
    """One that the gateway does not know, with one upstream alone."""
    offered: dict[str, object] = {**KNOWN, "io.x/novel": {}}
    assert offered_by(dict.fromkeys(upstreams, offered))["extensions"] == left


def offered_by(extensions: Mapping[str, object]) -> dict[str, object]:
    """The capabilities of an endpoint whose upstreams declare these extensions and nothing else."""
    layout = layouts(settings_of({name: {} for name in extensions}).upstreams, 64)[""]
    identities = {name: identity({"extensions": declared}) for name, declared in extensions.items()}
    found: dict[str, object] = msgspec.json.decode(raw(merge(layout, identities, {}).capabilities))
    return found


def test_skills_are_offered_with_the_resources_that_they_are_made_of() -> None:
    assert offered_by({"a": {SKILLS: {"directoryRead": True}}, "b": {}}) == {
        "extensions": {SKILLS: {"directoryRead": True}},
        "resources": {"listChanged": True},
    }


def test_directories_are_offered_where_every_upstream_with_skills_has_them() -> None:
    read = {SKILLS: {"directoryRead": True}}
    assert offered_by({"a": read, "b": read})["extensions"] == read
    assert offered_by({"a": read, "b": {SKILLS: {}}})["extensions"] == {SKILLS: {}}


def test_skills_that_are_declared_in_a_malformed_way_are_not_offered() -> None:
    assert offered_by({"a": {SKILLS: True}}) == {}


def test_skills_reach_every_client_whatever_it_declares() -> None:
    """The extension has no declaration of clients, and so needs no link of the client's own."""
    declaring = identity({"extensions": {SKILLS: {}, "io.x/novel": {}}})
    passing = relayed(declaring, V2025_11_25, owned=False).capabilities
    assert msgspec.json.decode(passing["extensions"]) == {SKILLS: {}}
    assert msgspec.json.decode(agreed(passing, Caller(ANONYMOUS, V2025_11_25))["extensions"]) == {SKILLS: {}}


def skill_entry(root: str, *files: str) -> dict[str, object]:
    listed = [{"uri": f"{root}/{name}", "digest": f"sha256:{name}", "size": 7} for name in ("SKILL.md", *files)]
    frontmatter = {"name": root.rpartition("/")[2], "description": f"of {root}", "license": "MIT"}
    return {"uri": f"{root}/SKILL.md", "frontmatter": frontmatter, "resources": listed}


def test_a_skill_keeps_all_but_the_uris_of_its_files() -> None:
    entry = skill_entry("skill://refunds", "a.md")
    (shown,) = entries(view_of({"a": {Kind.SKILLS: listing(Kind.SKILLS, entry)}}), Kind.SKILLS)
    renamed = skill_entry("a+skill://refunds", "a.md")
    assert shown == {**renamed, "frontmatter": entry["frontmatter"]}


def test_skills_of_one_name_and_uri_are_kept_apart_by_their_servers() -> None:
    entry = skill_entry("skill://refunds")
    view = view_of({name: {Kind.SKILLS: listing(Kind.SKILLS, entry)} for name in "ab"})
    assert keys(view, Kind.SKILLS) == ["a+skill://refunds/SKILL.md", "b+skill://refunds/SKILL.md"]


def test_a_skill_with_a_file_that_a_filter_hides_is_not_shown() -> None:
    entry, other = skill_entry("skill://refunds", "secret.md"), skill_entry("skill://other")
    lists = {"a": {Kind.SKILLS: listing(Kind.SKILLS, entry, other)}}
    view = view_of(lists, {"a": {"resources": {"exclude": ["skill://*/secret.md"]}}})
    assert keys(view, Kind.SKILLS) == ["a+skill://other/SKILL.md"]


def test_a_skill_whose_files_cannot_be_told_is_dropped_and_reported() -> None:
    read = listing(Kind.SKILLS, {**skill_entry("skill://refunds"), "resources": "some"})
    assert read.entries == ()
    assert [refused.why for refused in read.refused] == ['its resources are neither a list of files nor "dynamic"']
