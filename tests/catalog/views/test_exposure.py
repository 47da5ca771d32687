"""The twin of `mcproxy.catalog.views.exposure`."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from mcproxy.call.identity import AGGREGATE
from mcproxy.catalog.naming import layouts
from mcproxy.catalog.views.exposure import expose
from mcproxy.catalog.views.snapshots import read_listing
from mcproxy.protocol.headers import MirroredParameter
from mcproxy.protocol.methods import Kind
from mcproxy.protocol.tasks import Support
from tests.catalog.views.samples import entries, keys, listing, skill_entry, view_of
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


def test_of_a_definition_that_clients_must_reject_nothing_comes_in_headers() -> None:
    space = layouts(settings_of({"up": {}}).upstreams, 64)[AGGREGATE].space("up")
    broken = {"type": "object", "properties": {"region": {"type": "number", "x-mcp-header": "Region"}}}
    (shown,) = expose(space, Kind.TOOLS, listing(Kind.TOOLS, tool("t", inputSchema=broken))).shown
    assert shown.mirrored == ()


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
