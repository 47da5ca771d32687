"""The twin of `mcproxy.admin.list_sizes`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from mcproxy.admin.list_sizes import ListSizeCollector
from mcproxy.catalog.merging import View, expose, merge, read_listing
from mcproxy.catalog.naming import layouts
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings import UpstreamSettings

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("one", "two")]


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


def view() -> View:
    layout = layouts([UpstreamSettings(name="odd", prefix="odd", command="x")], 64)[""]
    tools = expose(layout.space("odd"), Kind.TOOLS, read_listing("odd", Kind.TOOLS, map(raw, TOOLS)))
    return merge(layout, {"odd": None}, {"odd": {Kind.TOOLS: tools}})
