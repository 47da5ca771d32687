"""The settings as a frozen, validated tree: what a configuration file can say. Reads no file itself."""

from __future__ import annotations

from pydantic import Field

from mcproxy.settings.access.access import Access
from mcproxy.settings.access.policy import PolicySettings
from mcproxy.settings.admin import Admin
from mcproxy.settings.endpoints import Endpoint, EndpointName
from mcproxy.settings.proxy import BridgeSettings, CacheLimits, LimitSettings, Naming, Paths, Proxy, Tls
from mcproxy.settings.section import Bytes, Glob, Positive, Prefix, Seconds, SecondsOrNone, Section, parse_quantity
from mcproxy.settings.upstream import (
    Content,
    NameFilter,
    ToolFilter,
    ToolOverride,
    UpstreamCache,
    UpstreamSettings,
    UpstreamTimeouts,
)

__all__ = [
    "Access",
    "Admin",
    "BridgeSettings",
    "Bytes",
    "CacheLimits",
    "Content",
    "Endpoint",
    "Glob",
    "LimitSettings",
    "NameFilter",
    "Naming",
    "Paths",
    "PolicySettings",
    "Positive",
    "Prefix",
    "Proxy",
    "Seconds",
    "SecondsOrNone",
    "Section",
    "Settings",
    "Tls",
    "ToolFilter",
    "ToolOverride",
    "UpstreamCache",
    "UpstreamSettings",
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
    upstreams: tuple[UpstreamSettings, ...] = ()
    """Everything behind the gateway, in the order of the file."""
