"""What can be said of who may do what, how much of it, and what is written down about it."""

from __future__ import annotations

from mcproxy.settings.access.audit import AuditSettings
from mcproxy.settings.access.authentication import Authentication
from mcproxy.settings.access.pins import PinSettings
from mcproxy.settings.access.policy import PolicySettings
from mcproxy.settings.access.rates import Rates
from mcproxy.settings.section import Section


class Access(Section):
    """Who may do what. Each part is a section in a module of its own."""

    authentication: Authentication = Authentication()
    """How callers show who they are."""
    policy: PolicySettings = PolicySettings()
    """Who may use what."""
    limits: Rates = Rates()
    """How much callers may use."""
    audit: AuditSettings = AuditSettings()
    """What is written down of each call."""
    pins: PinSettings = PinSettings()
    """Which definitions of upstreams are approved."""
