"""Read `listChanged` and `subscribe` from server capabilities. Malformed members count as absent."""

from __future__ import annotations

from msgspec import Raw

from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, InvalidMessage, Params, parse_object

_TRUE = Raw(b"true")


def tells_changes(capabilities: Params, capability: str) -> bool:
    """Whether it notifies of changes of the list of `tools`, `resources` or `prompts`."""
    return _said(capabilities, capability, "listChanged")


def reports_updates(capabilities: Params) -> bool:
    """Whether it offers subscriptions to resources (resources, Capabilities)."""
    return _said(capabilities, "resources", "subscribe")


def _said(capabilities: Params, capability: str, what: str) -> bool:
    try:
        return parse_object(capabilities.get(capability, EMPTY_OBJECT)).get(what) == _TRUE
    except InvalidMessage:
        return False
