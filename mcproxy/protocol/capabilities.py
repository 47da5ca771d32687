"""Read what a server offers from its capabilities: lists, extensions, `listChanged`, `subscribe`.

Malformed members count as absent.
"""

from __future__ import annotations

from msgspec import Raw

from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, InvalidMessage, Params, parse_object
from mcproxy.protocol.methods import Kind, Method
from mcproxy.protocol.tasks import extension_settings

_TRUE = Raw(b"true")


def lists(capabilities: Params, kind: Kind) -> bool:
    """Whether a server has that list."""
    if kind.extension is None:
        return kind.capability in capabilities
    return extension_settings(capabilities, kind.extension) is not None


def lacks(capabilities: Params, row: Method) -> str | None:
    """The capability or extension that a method needs and a server does not offer; None where it offers all."""
    if row.capability is not None and row.capability not in capabilities:
        return row.capability
    if row.extension is None:
        return None
    settings = extension_settings(capabilities, row.extension)
    if settings is None:
        return row.extension
    if row.extension_setting is not None and settings.get(row.extension_setting) != _TRUE:
        return f"{row.extension_setting} of {row.extension}"
    return None


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
