"""The twin of `mcproxy.admin.measures.collectors`."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from mcproxy.admin.measures.collectors import ListSizeCollector, UpstreamCollector
from mcproxy.call.upstreams import LinkFailure, LinkState, ServerIdentity, UpstreamStatus
from mcproxy.catalog.naming import layouts
from mcproxy.catalog.search.search_view import searchable
from mcproxy.catalog.views.merging import merge
from mcproxy.catalog.views.snapshots import read_listing
from mcproxy.catalog.views.view import View
from mcproxy.protocol.eras import LATEST, Era
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Endpoint, UpstreamSettings
from tests.catalog.whole import expose

UNLISTED = "mcproxy_view_unlisted_bytes"
TAKES = "mcproxy_upstream_takes_credentials"
READY = UpstreamStatus("git", LinkState.READY, 0, "stdio", ServerIdentity(Era.STATELESS, LATEST, {}))
LOST = UpstreamStatus(
    "git",
    LinkState.BACKING_OFF,
    0,
    "stdio",
    READY.identity,
    error="the token 'hunter2' was refused",
    failure=LinkFailure.REJECTED,
)
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("one", "two")]


def phases(registry: CollectorRegistry) -> set[tuple[str, str]]:
    samples = [sample for family in registry.collect() for sample in family.samples]
    standing = [sample.labels for sample in samples if sample.name == "mcproxy_upstream_phase" and sample.value]
    return {(labels["upstream"], labels["phase"]) for labels in standing}


def test_an_upstream_is_in_one_phase_and_what_is_gone_is_in_none() -> None:
    statuses, registry = [READY], CollectorRegistry()
    registry.register(UpstreamCollector(lambda: statuses))
    assert phases(registry) == {("git", "ready")}
    statuses[0] = LOST
    assert phases(registry) == {("git", "backing_off")}
    statuses.clear()
    assert phases(registry) == set()


def test_r52_why_an_upstream_is_not_connected_is_one_of_few_words_until_it_is() -> None:
    statuses, registry = [LOST], CollectorRegistry()
    registry.register(UpstreamCollector(lambda: statuses))
    why = {"upstream": "git", "why": "rejected"}
    assert registry.get_sample_value("mcproxy_upstream_trouble_info", why) == 1
    statuses[0] = READY
    assert registry.get_sample_value("mcproxy_upstream_trouble_info", why) is None


def test_r39_an_upstream_whose_callers_bring_credentials_is_known_as_one() -> None:
    registry = CollectorRegistry()
    registry.register(UpstreamCollector(lambda: [READY, replace(LOST, name="own", takes_credentials=True)]))
    taking = {name: registry.get_sample_value(TAKES, {"upstream": name}) for name in ("git", "own")}
    assert taking == {"git": 0, "own": 1}


def test_r44_what_it_spoke_is_told_and_what_went_wrong_is_not() -> None:
    registry = CollectorRegistry()
    registry.register(UpstreamCollector(lambda: [LOST, UpstreamStatus("new", LinkState.CONNECTING, 0, "http")]))
    spoken = {"upstream": "git", "transport": "stdio", "era": "stateless", "version": LATEST}
    assert registry.get_sample_value("mcproxy_upstream_info", spoken) == 1
    labels = [sample.labels for family in registry.collect() for sample in family.samples]
    assert not any("hunter2" in value for values in labels for value in values.values())


def test_r52_the_bytes_of_each_list_are_those_that_callers_are_sent() -> None:
    views: list[tuple[str, View]] = [("/mcp", view())]
    registry = CollectorRegistry()
    registry.register(ListSizeCollector(lambda: views))
    sent = sum(len(shown.entry) for shown in views[0][1].lists[Kind.TOOLS])
    assert sent > sum(len(raw(tool)) for tool in TOOLS)  # the prefix is sent too
    assert registry.get_sample_value("mcproxy_view_bytes", {"endpoint": "/mcp", "kind": "tools"}) == sent
    assert registry.get_sample_value("mcproxy_view_bytes", {"endpoint": "/mcp", "kind": "prompts"}) == 0
    views.clear()
    assert registry.get_sample_value("mcproxy_view_bytes", {"endpoint": "/mcp", "kind": "tools"}) is None


def test_r52_the_bytes_that_search_saves_are_those_of_the_tools_that_are_not_listed() -> None:
    searched = searchable(view(discovery="search", pinned=["odd__*"]), LATEST)
    saving = searchable(view(discovery="search"), LATEST)
    registry = CollectorRegistry()
    registry.register(ListSizeCollector(lambda: [("/mcp/all", searched), ("/mcp/none", saving), ("/mcp", view())]))
    sizes = [registry.get_sample_value(UNLISTED, {"endpoint": path}) for path in ("/mcp/all", "/mcp/none", "/mcp")]
    assert sizes == [0, sum(len(shown.entry) for shown in saving.unlisted), None]
    assert sizes[1] == sum(len(shown.entry) for shown in view().lists[Kind.TOOLS])


def view(**endpoint: object) -> View:
    endpoints = {"agent": Endpoint.model_validate(endpoint)}
    layout = layouts([UpstreamSettings(name="odd", prefix="odd", command="x")], 64, endpoints)["/agent"]
    tools = expose(layout.space("odd"), Kind.TOOLS, read_listing("odd", Kind.TOOLS, map(raw, TOOLS)))
    return merge(layout, {"odd": None}, {"odd": {Kind.TOOLS: tools}})
