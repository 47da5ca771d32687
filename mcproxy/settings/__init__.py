"""The settings as a frozen, validated tree: what a configuration file can say. Reads no file itself."""

from __future__ import annotations

from mcproxy.settings.access import Access
from mcproxy.settings.proxy import Bridge, CacheLimits, Limits, Naming, Paths, Proxy
from mcproxy.settings.section import Bytes, Count, Glob, Prefix, Seconds, SecondsOrNone, Section, parse_quantity
from mcproxy.settings.upstream import Filter, ToolFilter, ToolOverride, Upstream, UpstreamCache, UpstreamTimeouts

__all__ = [
    "Access",
    "Bridge",
    "Bytes",
    "CacheLimits",
    "Count",
    "Filter",
    "Glob",
    "Limits",
    "Naming",
    "Paths",
    "Prefix",
    "Proxy",
    "Seconds",
    "SecondsOrNone",
    "Section",
    "Settings",
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
    upstreams: tuple[Upstream, ...] = ()
    """Everything behind the gateway, in the order of the file."""
