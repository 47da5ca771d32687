"""Settings of hooks (`access.hooks`): the operator's services that may change or refuse calls and results."""

from collections.abc import Mapping
from typing import Final, Literal

from mcproxy.protocol.methods import Kind
from mcproxy.settings.access.policy import Selection
from mcproxy.settings.access.webhook import WebhookSettings

HookedMethod = Literal["tools/call", "prompts/get", "resources/read"]
KINDS: Final[Mapping[str, Kind]] = {
    "tools/call": Kind.TOOLS,
    "prompts/get": Kind.PROMPTS,
    "resources/read": Kind.RESOURCES,
}
"""The kind of entry that each of these methods uses."""


class HookSettings(Selection, WebhookSettings):
    """A service that is asked about calls of what it selects, by the upstreams' own names."""

    on: tuple[HookedMethod, ...] = ("tools/call",)
    """The methods whose calls it is asked about."""
    phase: Literal["before", "after"] = "before"
    """`before`: it gets the call; `after`: it gets the result as well."""
    mode: Literal["enforce", "audit"] = "enforce"
    """`enforce`: its decisions hold; `audit`: they are only written to the audit log."""
    fail: Literal["closed", "open"] = "closed"
    """Whether calls are refused or go on if the service fails."""
