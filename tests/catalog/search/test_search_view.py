"""The view of an endpoint with search: what it lists, what it leaves to be found, and which change clients hear of."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.naming import GATEWAY, layouts
from mcproxy.catalog.search.own_tools import SCHEMAS
from mcproxy.catalog.search.search_view import found_by_search, searchable
from mcproxy.catalog.views.merging import merge
from mcproxy.catalog.views.snapshots import read_listing
from mcproxy.catalog.views.view import View
from mcproxy.protocol.eras import LATEST, V2025_11_25, Era
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Endpoint, UpstreamSettings
from tests.catalog.whole import expose
from tests.fakes.upstream import decoded, tool

APP = tool("app", _meta={"ui": {"resourceUri": "ui://x", "visibility": ["app"]}})
BOTH = tool("both", _meta={"ui": {"resourceUri": "ui://x", "visibility": ["model", "app"]}})
TOOLS = [tool("log"), tool("status"), APP, BOTH]


def view(
    tools: Sequence[object] = TOOLS,
    *,
    prefix: str = "git",
    version: str = LATEST,
    pinned: Sequence[str] = (),
    **capabilities: object,
) -> View:
    endpoint = Endpoint.model_validate({"discovery": "search", "pinned": pinned})
    layout = layouts([UpstreamSettings(name="git", prefix=prefix, command="x")], 64, {"agent": endpoint})["/agent"]
    exposure = expose(layout.space("git"), Kind.TOOLS, read_listing("git", Kind.TOOLS, map(raw, tools)))
    merged = merge(layout, {"git": None}, {"git": {Kind.TOOLS: exposure}})
    return searchable(merged, LATEST)


def listed(found: View) -> list[str]:
    return [shown.key for shown in found.lists[Kind.TOOLS]]


def test_it_lists_the_gateways_own_tools_pinned_ones_and_those_of_apps() -> None:
    assert listed(view(pinned=["git__s*"])) == [*SCHEMAS, "git__status", "git__app"]


def test_all_that_models_may_call_is_found_pinned_or_not() -> None:
    found = found_by_search(view(pinned=["git__s*"]))
    assert [shown.key for shown in found] == ["git__status", "git__log", "git__both"]


def test_a_tool_that_is_not_listed_is_called_by_its_name() -> None:
    shown = view().find(Kind.TOOLS, "git__log")
    assert shown is not None
    assert shown.own == "log"


def test_only_what_is_listed_is_a_change_to_clients() -> None:
    before = view(pinned=["git__status"])
    assert view([*TOOLS, tool("new")], pinned=["git__status"]).changed(before) == []
    assert view([tool("log"), APP, BOTH], pinned=["git__status"]).changed(before) == [Kind.TOOLS]


def test_an_upstream_without_a_prefix_cannot_take_the_place_of_the_gateways_own_tools() -> None:
    found = view([tool("find_tools", description="mine"), tool("log")], prefix="")
    assert [shown.upstream for shown in found.lists[Kind.TOOLS]] == [GATEWAY] * len(SCHEMAS)
    assert [shown.key for shown in found.unlisted] == ["log"]
    assert [(entry.name, entry.why) for entry in found.refused] == [
        ("find_tools", "'find_tools' is a tool of the gateway's own here")
    ]


def test_an_endpoint_of_which_a_caller_may_use_nothing_has_no_tools_of_the_gateways_own() -> None:
    layout = layouts([], 64, {"agent": Endpoint(discovery="search")})["/agent"]
    assert searchable(merge(layout, {}, {}), LATEST).lists[Kind.TOOLS] == ()


def test_a_view_without_search_is_left_as_it_is() -> None:
    layout = layouts([UpstreamSettings(name="git", prefix="git", command="x")], 64)[""]
    merged = merge(layout, {"git": None}, {})
    assert searchable(merged, LATEST) is merged


def test_callers_are_tasks_where_the_upstreams_take_tool_calls_as_tasks() -> None:
    endpoint = Endpoint(discovery="search")
    layout = layouts([UpstreamSettings(name="git", prefix="git", command="x")], 64, {"agent": endpoint})["/agent"]
    tasks = {"tools": raw({}), "tasks": raw({"requests": {"tools": {"call": {}}}})}
    merged = merge(layout, {"git": ServerIdentity(Era.HANDSHAKE, V2025_11_25, tasks)}, {})
    with_tasks = {shown.key: decoded(shown.entry) for shown in searchable(merged, V2025_11_25).lists[Kind.TOOLS]}
    assert with_tasks["call_read"]["execution"] == {"taskSupport": "optional"}
    without = {shown.key: decoded(shown.entry) for shown in searchable(merged, LATEST).lists[Kind.TOOLS]}
    assert "execution" not in without["call_read"]
