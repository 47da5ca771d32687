"""The settings as a frozen, validated tree: what a configuration file can say. Reads no file itself."""

from __future__ import annotations

from pydantic import Field

from mcproxy.settings.access.access import Access
from mcproxy.settings.access.policy import Policy
from mcproxy.settings.admin import Admin
from mcproxy.settings.endpoints import Endpoint, EndpointName
from mcproxy.settings.proxy import Bridge, CacheLimits, Limits, Naming, Paths, Proxy, Tls
from mcproxy.settings.section import Bytes, Count, Glob, Prefix, Seconds, SecondsOrNone, Section, parse_quantity
from mcproxy.settings.upstream import (
    Content,
    Filter,
    ToolFilter,
    ToolOverride,
    Upstream,
    UpstreamCache,
    UpstreamTimeouts,
)

__all__ = [
    "Access",
    "Admin",
    "Bridge",
    "Bytes",
    "CacheLimits",
    "Content",
    "Count",
    "Endpoint",
    "Filter",
    "Glob",
    "Limits",
    "Naming",
    "Paths",
    "Policy",
    "Prefix",
    "Proxy",
    "Seconds",
    "SecondsOrNone",
    "Section",
    "Settings",
    "Tls",
    "ToolFilter",
    "ToolOverride",
    "Upstream",
    "UpstreamCache",
    "UpstreamTimeouts",
    "parse_quantity",
]


class Settings(Section):
    proxy: Proxy = Proxy()
    """The gateway's own side."""
    access: Access = Access()
    """Who may do what."""
    endpoints: dict[EndpointName, Endpoint] = Field(default_factory=dict)
    """Selections of what is behind the gateway, each at `/mcp/NAME`."""
    admin: Admin = Admin()
    """The operator's side: the status page."""
    upstreams: tuple[Upstream, ...] = ()
    """Everything behind the gateway, in the order of the file."""
