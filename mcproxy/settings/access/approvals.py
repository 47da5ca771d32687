"""Settings of approvals (`access.approvals`): how long calls wait for a person, how many may, and how operators learn.

The policy says which calls need approval: `approve` in an allow rule.
"""

from mcproxy.settings.access.webhook import WebhookSettings
from mcproxy.settings.section import Positive, Seconds, Section


class ApprovalWebhookSettings(WebhookSettings):
    """A service that is told of calls that wait for an operator."""

    attempts: Positive = 10
    """Requests for one call until the service accepts one (2xx), with exponential backoff, while the call waits."""


class ApprovalSettings(Section):
    """Calls that wait for a person (`access.approvals`); `approve` in an allow rule says which."""

    timeout: Seconds = 300
    """Time that a person has to answer; then the call is refused.

    Callers have no more time to answer than `proxy.bridge.park_ttl` and `proxy.ask_timeout`.
    """
    max_waiting: Positive = 1000
    """Calls that wait at once; one more is refused."""
    max_waiting_per_principal: Positive = 20
    """Such calls of one caller; all anonymous callers count as one."""
    webhook: ApprovalWebhookSettings | None = None
    """Told of each call that waits for an operator: {url: https://ops.example/approve, secret: ...}.

    It may decide by its answer, {"decision": "allow"} or {"decision": "deny"}; else operators do, on the status page.
    """
