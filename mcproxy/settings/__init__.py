"""The settings as an immutable, validated tree: every section that a configuration file can hold. Reads no file."""

from __future__ import annotations

from mcproxy.settings.access.policy import PolicySettings
from mcproxy.settings.admin import Admin
from mcproxy.settings.cluster import Cluster, ClusterTls
from mcproxy.settings.endpoints import Endpoint
from mcproxy.settings.proxy import (
    BridgeSettings,
    CacheLimits,
    KeptResultLimits,
    LimitSettings,
    Naming,
    Paths,
    Proxy,
    Tls,
)
from mcproxy.settings.root import Access, Settings
from mcproxy.settings.section import Bytes, Glob, Positive, Prefix, Seconds, SecondsOrNone, Section, parse_quantity
from mcproxy.settings.upstreams.upstream import (
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
    "Cluster",
    "ClusterTls",
    "Content",
    "Endpoint",
    "Glob",
    "KeptResultLimits",
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
