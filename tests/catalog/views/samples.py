"""Lists and views for the tests of `mcproxy.catalog.views`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mcproxy.call.identity import AGGREGATE
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.naming import Layout, layouts
from mcproxy.catalog.views.exposure import Exposure
from mcproxy.catalog.views.merging import merge
from mcproxy.catalog.views.snapshots import Listing, read_listing
from mcproxy.catalog.views.view import View
from mcproxy.protocol.eras import (
    LATEST_HANDSHAKE,
    STATELESS_VERSIONS,
    Era,
)
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from tests.catalog.whole import expose
from tests.fakes.upstream import settings_of


def identity(
    capabilities: Mapping[str, object] | None = None, instructions: str | None = None, version: str = LATEST_HANDSHAKE
) -> ServerIdentity:
    declared = {key: raw(value) for key, value in (capabilities or {}).items()}
    era = Era.STATELESS if version in STATELESS_VERSIONS else Era.HANDSHAKE
    return ServerIdentity(era, version, declared, instructions=instructions)


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


def skill_entry(root: str, *files: str) -> dict[str, object]:
    listed = [{"uri": f"{root}/{name}", "digest": f"sha256:{name}", "size": 7} for name in ("SKILL.md", *files)]
    frontmatter = {"name": root.rpartition("/")[2], "description": f"of {root}", "license": "MIT"}
    return {"uri": f"{root}/SKILL.md", "frontmatter": frontmatter, "resources": listed}
