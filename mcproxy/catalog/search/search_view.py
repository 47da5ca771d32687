"""The view of an endpoint whose tools are found by search: what it lists, and what it leaves to be found.

It lists the gateway's own tools, pinned tools, and tools that are not for models (of an app's interface, and for
logging in). All others stay callable by name. It is derived from the caller's own view, which has left out what the
caller may not use.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcproxy.catalog.naming import GATEWAY, RefusedEntry
from mcproxy.catalog.search.own_tools import SCHEMAS, own_tools
from mcproxy.catalog.views.view import Shown, View
from mcproxy.protocol.json.bounds import Bounded
from mcproxy.protocol.jsonrpc import may_hold, raw
from mcproxy.protocol.methods import Kind
from mcproxy.protocol.tasks import Dialect, dialect, offer, takes_tool_calls

_VISIBILITY: Final = b'"visibility"'


class _MetaOfTool(msgspec.Struct):
    meta: Any = msgspec.field(default=None, name="_meta")


_tool = Bounded(_MetaOfTool)


def searchable(view: View, version: str) -> View:
    """`view` for callers that speak `version`; one without upstreams stays empty."""
    endpoint = view.layout.search
    if endpoint is None or not view.layout.spaces:
        return view
    tools = [shown for shown in view.lists[Kind.TOOLS] if shown.key not in SCHEMAS]
    taken = tuple(_taken(shown) for shown in view.lists[Kind.TOOLS] if shown.key in SCHEMAS)
    own = [
        Shown(name, GATEWAY, name, entry)
        for name, entry in own_tools(
            [space.upstream for space in view.layout.spaces], tasks=_takes_tasks(view, version)
        ).items()
    ]
    listed = {shown.key for shown in tools if _is_pinned(shown, endpoint.pinned) or not is_for_models(shown)}
    return replace(
        view,
        lists={**view.lists, Kind.TOOLS: (*own, *(shown for shown in tools if shown.key in listed))},
        unlisted=tuple(shown for shown in tools if shown.key not in listed),
        capabilities={**view.capabilities, "tools": raw({"listChanged": True})},
        refused=(*view.refused, *taken),
    )


def found_by_search(view: View) -> tuple[Shown, ...]:
    """The tools that a search of this view finds: all that models may call, but for the gateway's own."""
    listed = (shown for shown in view.lists[Kind.TOOLS] if shown.upstream != GATEWAY and is_for_models(shown))
    return (*listed, *view.unlisted)


def _is_pinned(shown: Shown, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(shown.key, glob) for glob in globs)


def is_for_models(shown: Shown) -> bool:
    """False for a tool by which a user logs in, and for one of an app's interface (MCP Apps, `_meta.ui.visibility`)."""
    if shown.is_login:
        return False
    if not may_hold(shown.entry, _VISIBILITY):
        return True
    try:
        meta = _tool.decode(Raw(shown.entry)).meta
    except (msgspec.MsgspecError, RecursionError):
        return True
    ui = meta.get("ui") if isinstance(meta, dict) else None
    visibility = ui.get("visibility") if isinstance(ui, dict) else None
    return not isinstance(visibility, list) or "model" in visibility


def _takes_tasks(view: View, version: str) -> bool:
    """Whether callers of `version` call tools as tasks here (2025-11-25, tasks, Server Capabilities)."""
    return dialect(version) is Dialect.CORE and takes_tool_calls(offer(version, view.capabilities) or {})


def _taken(shown: Shown) -> RefusedEntry:
    return RefusedEntry(shown.upstream, Kind.TOOLS, shown.own, f"{shown.key!r} is a tool of the gateway's own here")
