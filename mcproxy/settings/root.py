"""The root of the settings: `Settings` has an attribute for each top-level key of a configuration file."""

from __future__ import annotations

from pydantic import Field

from mcproxy.settings.access.audit import AuditSettings
from mcproxy.settings.access.authentication import Authentication
from mcproxy.settings.access.limits import RateLimits
from mcproxy.settings.access.pins import PinSettings
from mcproxy.settings.access.policy import PolicySettings
from mcproxy.settings.admin import Admin
from mcproxy.settings.endpoints import Endpoint, EndpointName
from mcproxy.settings.proxy import Proxy
from mcproxy.settings.section import Section
from mcproxy.settings.upstream import UpstreamSettings


class Access(Section):
    """Who may do what. Each part is a section in a module of its own."""

    authentication: Authentication = Authentication()
    """How callers show who they are."""
    policy: PolicySettings = PolicySettings()
    """Who may use what."""
    limits: RateLimits = RateLimits()
    """How much callers may use."""
    audit: AuditSettings = AuditSettings()
    """What is written down of each call."""
    pins: PinSettings = PinSettings()
    """Which definitions of upstreams are approved."""


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
