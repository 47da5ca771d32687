"""The root of the settings: `Settings` has an attribute for each top-level key of a configuration file."""

from collections.abc import Iterable, Mapping
from typing import Self

from pydantic import Field, PrivateAttr

from mcproxy.settings.access.approvals import ApprovalSettings
from mcproxy.settings.access.audit import AuditSettings
from mcproxy.settings.access.authentication import Authentication
from mcproxy.settings.access.hooks import HookSettings
from mcproxy.settings.access.limits import RateLimits
from mcproxy.settings.access.pins import PinSettings
from mcproxy.settings.access.policy import PolicySettings
from mcproxy.settings.admin import Admin
from mcproxy.settings.cluster import Cluster
from mcproxy.settings.egress import general
from mcproxy.settings.endpoints import Endpoint, EndpointName
from mcproxy.settings.proxy import Proxy
from mcproxy.settings.section import Section
from mcproxy.settings.upstreams.upstream import UpstreamSettings


class Access(Section):
    """Who may do what, how much of it, and what is recorded (`access`)."""

    authentication: Authentication = Authentication()
    """How callers prove who they are; any one way suffices.

    If none is configured, all callers are anonymous and the gateway listens on loopback alone.
    """
    policy: PolicySettings = PolicySettings()
    """Who may use what. What a caller is denied does not exist for it."""
    hooks: tuple[HookSettings, ...] = ()
    """Services that are asked about calls or results, each with the rules of a webhook: {on: [tools/call], tools:
    ['rm_*'], url: https://ops.example/check, secret: ..., phase: before, mode: enforce, timeout: 2s, fail: closed}.
    """
    approvals: ApprovalSettings = ApprovalSettings()
    """Calls that wait for a person: how long, how many, and how operators learn of them. The policy says which."""
    limits: RateLimits = RateLimits()
    """How much callers may use. A call counts towards every limit that covers it, and needs room in each."""
    audit: AuditSettings = AuditSettings()
    """The audit log: one line of JSON per call, with its caller, its subject, the decision and the outcome."""
    pins: PinSettings = PinSettings()
    """Approved definitions: tools, prompts, templates, skills and instructions, as `mcproxy lock` recorded them."""


class Settings(Section):
    """A whole configuration file. Immutable; a reload makes a new one."""

    proxy: Proxy = Proxy()
    """The gateway itself: where it listens, its limits and timeouts."""
    access: Access = Access()
    """Who may do what, how much of it, and what is recorded."""
    endpoints: dict[EndpointName, Endpoint] = Field(default_factory=dict)
    """Endpoints that show a part of the upstreams, by name, each at `/mcp/NAME`.

    Each is shown to callers that have one of its roles, or to all callers: {support: {upstreams: [tickets, wiki],
    tools: [search_*], resources: ['*'], prompts: [], roles: [agent]}}

    With `discovery: search` its tools are found by search: {agent: {discovery: search, pinned: [git__status],
    search: {results: 10, max_tokens: 1500}}}
    """
    admin: Admin = Admin()
    """The operators' listener: status page, health and metrics. Operators authenticate where callers do."""
    cluster: Cluster = Cluster()
    """Several replicas behind one load balancer. Without `redis` this is the only replica."""
    features: dict[str, Section] = Field(default_factory=dict)
    """Features that other packages bring, by name, each with its own settings: {redact: {pattern: '[0-9]{16}'}}."""
    upstreams: tuple[UpstreamSettings, ...] = ()
    """The servers behind the gateway, in the order of the file."""

    _secrets: frozenset[str] = PrivateAttr(default=frozenset())

    @property
    def secrets(self) -> frozenset[str]:
        """Its values that may never be shown (requirement R44), as far as its file tells."""
        return self._secrets

    def leaving(self, environ: Mapping[str, str]) -> Self:
        """These settings, each section's requests leaving as `proxy.egress` and the environment say."""
        way = general(self.proxy.egress, environ)
        embeddings, webhook = self.proxy.embeddings, self.access.approvals.webhook
        authentication = self.access.authentication
        proxy = {
            "embeddings": None if embeddings is None else embeddings.leaving_by(way),
            "tracing": self.proxy.tracing.leaving_by(way),
        }
        access = {
            "hooks": tuple(hook.leaving_by(way) for hook in self.access.hooks),
            "approvals": self.access.approvals.model_copy(
                update={"webhook": None if webhook is None else webhook.leaving_by(way)}
            ),
            "authentication": authentication.model_copy(update={"oauth": authentication.oauth.leaving_by(way)}),
        }
        return self.model_copy(
            update={
                "proxy": self.proxy.model_copy(update=proxy),
                "access": self.access.model_copy(update=access),
                "upstreams": tuple(upstream.leaving_by(way) for upstream in self.upstreams),
            }
        )

    def keeping_secret(self, values: Iterable[str]) -> Self:
        """These settings with such values."""
        kept = self.model_copy()
        kept._secrets = frozenset(values)
        return kept
