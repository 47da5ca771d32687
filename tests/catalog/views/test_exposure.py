"""The twin of `mcproxy.catalog.views.exposure`."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec import Raw

from mcproxy.call.identity import AGGREGATE
from mcproxy.catalog.naming import Space, layouts
from mcproxy.catalog.views.exposure import exposing, exposing_to_handshake, permitting
from mcproxy.catalog.views.snapshots import Listing, read_listing, reading
from mcproxy.concurrency.turns import at_once
from mcproxy.protocol.headers import MirroredParameter
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from mcproxy.protocol.tasks import Support
from tests.catalog.views.samples import entries, keys, listing, skill_entry, view_of
from tests.catalog.whole import expose, for_handshake
from tests.fakes.upstream import resource, settings_of, tool


def test_r32_an_entry_keeps_what_is_unknown() -> None:
    entry = tool("x", icons=[{"src": "a"}], outputSchema={"k": 1}, _meta={"m": [1]}, future={"deep": None})
    view = view_of({"a": {Kind.TOOLS: listing(Kind.TOOLS, entry)}})
    assert entries(view, Kind.TOOLS) == [{**entry, "name": "a__x"}]


def test_r33_on_its_own_endpoint_an_entry_is_the_very_same() -> None:
    data = Raw(b'{"name" : "x",  "n":1.50, "inputSchema": {"type":"object" }}')
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
    view = view_of({"a": {Kind.TOOLS: listing(Kind.TOOLS, tool("x", title="old"))}}, options)
    assert entries(view, Kind.TOOLS) == [tool("a__n", title="T", description="D")]
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
    region = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    (shown,) = expose(space, Kind.TOOLS, listing(Kind.TOOLS, tool("t", inputSchema=region))).shown
    assert shown.mirrored == (MirroredParameter("Mcp-Param-Region", ("region",), "string"),)


def test_a_definition_that_clients_must_reject_for_its_annotations_is_shown_without_them() -> None:
    space = layouts(settings_of({"up": {}}).upstreams, 64)[AGGREGATE].space("up")
    place = {"type": "string", "x-mcp-header": "Place"}
    broken = {"type": "object", "properties": {"region": {"type": "number", "x-mcp-header": "Region"}, "place": place}}
    (shown,) = expose(space, Kind.TOOLS, listing(Kind.TOOLS, tool("t", inputSchema=broken))).shown
    assert shown.mirrored == ()
    usable = {"type": "object", "properties": {"region": {"type": "number"}, "place": {"type": "string"}}}
    assert msgspec.json.decode(shown.entry) == tool("up__t", inputSchema=usable)


def test_a_skill_keeps_all_but_the_uris_of_its_files() -> None:
    entry = skill_entry("skill://refunds", "a.md")
    (shown,) = entries(view_of({"a": {Kind.SKILLS: listing(Kind.SKILLS, entry)}}), Kind.SKILLS)
    renamed = skill_entry("a+skill://refunds", "a.md")
    assert shown == {**renamed, "frontmatter": entry["frontmatter"]}


def test_a_skill_with_a_file_that_a_filter_hides_is_not_shown() -> None:
    entry, other = skill_entry("skill://refunds", "secret.md"), skill_entry("skill://other")
    lists = {"a": {Kind.SKILLS: listing(Kind.SKILLS, entry, other)}}
    view = view_of(lists, {"a": {"resources": {"exclude": ["skill://*/secret.md"]}}})
    assert keys(view, Kind.SKILLS) == ["a+skill://other/SKILL.md"]


def space_of(**options: object) -> Space:
    return layouts(settings_of({"up": options}).upstreams, 64)[AGGREGATE].space("up")


def followed(before: Listing, *entries: object) -> Listing:
    """The list that comes after another one."""
    return at_once(reading("up", Kind.TOOLS, map(raw, entries), before))


def test_entries_that_stayed_are_not_exposed_anew() -> None:
    space, before = space_of(), listing(Kind.TOOLS, tool("a"), tool("b"), tool("bad", inputSchema=7))
    earlier = expose(space, Kind.TOOLS, before)
    after = followed(before, tool("b", title="new"), tool("a"), tool("bad", inputSchema=7), tool("c"))
    later = at_once(exposing(space, Kind.TOOLS, after, earlier))
    assert later == expose(space, Kind.TOOLS, after)
    assert later.shown[1] is earlier.shown[0]
    assert later.unreadable[0] is earlier.unreadable[0]


def test_an_entry_whose_name_went_to_another_is_exposed_by_another_name() -> None:
    space, before = space_of(), listing(Kind.TOOLS, tool("x.y"))
    earlier = expose(space, Kind.TOOLS, before)
    assert [shown.key for shown in earlier.shown] == ["up__x_y"]
    after = followed(before, tool("x.y"), tool("x_y"))
    later = at_once(exposing(space, Kind.TOOLS, after, earlier))
    assert later == expose(space, Kind.TOOLS, after)
    assert [(shown.key, shown.own) for shown in later.shown] == [("up__x_y", "x_y")]
    back = at_once(exposing(space, Kind.TOOLS, followed(after, tool("x.y")), later))
    assert [(shown.key, shown.own) for shown in back.shown] == [("up__x_y", "x.y")]


def test_handshake_clients_see_entries_that_stayed_as_they_saw_them() -> None:
    space = space_of()
    before = listing(Kind.TOOLS, tool("a", outputSchema={"type": "array"}), tool("b", outputSchema={"type": 7}))
    stateless = expose(space, Kind.TOOLS, before)
    earlier = for_handshake(stateless)
    after = followed(before, tool("a", outputSchema={"type": "array"}), tool("c"))
    later = at_once(exposing_to_handshake(at_once(exposing(space, Kind.TOOLS, after, stateless)), earlier))
    assert later == for_handshake(expose(space, Kind.TOOLS, after))
    assert later.shown[0] is earlier.shown[0]


def test_callers_see_what_they_may_use_and_the_policy_is_asked_of_no_entry_twice() -> None:
    asked: list[str] = []

    def permits(kind: Kind, own: str, entry: Raw | None) -> bool:
        asked.append(own)
        return own != "secret"

    space = replace(space_of(), permits=permits)
    before = listing(Kind.TOOLS, tool("a"), tool("secret"), tool("bad", inputSchema=7))
    whole = expose(space_of(), Kind.TOOLS, before)
    earlier = at_once(permitting(space, Kind.TOOLS, whole))
    assert [shown.own for shown in earlier.shown] == ["a"]
    assert [shown.own for shown in earlier.unreadable] == ["bad"]
    asked.clear()
    after = followed(before, tool("a"), tool("secret"), tool("b"))
    later = at_once(permitting(space, Kind.TOOLS, at_once(exposing(space_of(), Kind.TOOLS, after, whole)), earlier))
    assert [shown.own for shown in later.shown] == ["a", "b"]
    assert later.unreadable == ()
    assert asked == ["b"]


def test_an_entry_that_may_not_be_used_and_could_not_be_read_cannot_be_called_either() -> None:
    space = replace(space_of(), permits=lambda kind, own, entry: False)
    whole = expose(space_of(), Kind.TOOLS, listing(Kind.TOOLS, tool("bad", inputSchema=7)))
    found = at_once(permitting(space, Kind.TOOLS, whole))
    assert (found.shown, found.unreadable, found.refused) == ((), (), whole.refused)


def test_r78_others_have_their_turn_while_a_long_list_is_exposed() -> None:
    long = listing(Kind.TOOLS, *(tool(f"t{number}") for number in range(2000)))
    assert sum(1 for _ in exposing(space_of(), Kind.TOOLS, long)) >= 40
