"""Read what a server offers from its capabilities: lists, extensions, `listChanged`, `subscribe`.

Malformed members count as absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Raw

from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    InvalidMessage,
    Params,
    json_of,
    object_or_empty,
    parse_object,
    raw,
)
from mcproxy.protocol.methods import (
    ACKNOWLEDGED,
    CANCELLED,
    CHANGED,
    ELICITATION_COMPLETE,
    INITIALIZED,
    INPUT_CAPABILITIES,
    LOG_MESSAGE,
    METHODS,
    PROGRESS,
    RESOURCE_UPDATED,
    SKILLS,
    Kind,
    Method,
)
from mcproxy.protocol.tasks import EXTENSION, TASK_NOTIFICATION, TASK_STATUS, extension_settings, extensions

KNOWN_EXTENSIONS: Final = frozenset({EXTENSION, SKILLS, "io.modelcontextprotocol/ui"})
"""Extensions that work with several servers behind an endpoint: tasks, which are routed by their ids, skills, which
are listed like resources, and MCP Apps, which has no messages of its own."""

MAX_METHOD: Final = 128
"""Characters of the name of an extension's method."""
_KNOWN_MESSAGES: Final = frozenset(
    {*METHODS, *INPUT_CAPABILITIES, *CHANGED, PROGRESS, CANCELLED, LOG_MESSAGE, INITIALIZED, RESOURCE_UPDATED}
    | {ACKNOWLEDGED, ELICITATION_COMPLETE, TASK_STATUS, TASK_NOTIFICATION}
)

MAX_SAID: Final = 16 * 1024
"""Bytes of a server's capabilities that are kept and told to clients, and of those of all servers together."""

_TRUE: Final = Raw(b"true")


def fitting(members: Params, room: int = MAX_SAID) -> Params:
    """The members of an object that fit into `room` bytes, the smallest first; the same object if all do.

    Of a member that is an object and does not fit, its own members that do are kept, the smallest first.
    """
    if len(json_of(members)) <= room:
        return members
    return _smallest(members, room, lambda value, left: raw(_smallest(object_or_empty(value), left)))


def _smallest(members: Params, room: int, shrink: Callable[[Raw, int], Raw] = lambda value, left: value) -> Params:
    kept: Params = {}
    left = room - len(b"{}")
    for key, value in sorted(members.items(), key=lambda member: len(member[0]) + len(member[1])):
        inner = left - len(json_of(key)) - len(b":,")
        part = value if len(value) <= inner else shrink(value, inner)
        if len(part) <= inner and (part is value or part != EMPTY_OBJECT):
            kept[key], left = part, inner - len(part)
    return {key: kept[key] for key in members if key in kept}


def unknown_extensions(capabilities: Params) -> frozenset[str]:
    """Extensions that a peer declares and the gateway does not know: their messages can only pass unchanged."""
    return frozenset(extensions(capabilities).keys() - KNOWN_EXTENSIONS)


def is_of_extension(method: str) -> bool:
    """Whether a message may belong to an unknown extension: the name is no other's."""
    return method not in _KNOWN_MESSAGES and 0 < len(method) <= MAX_METHOD


def lists(capabilities: Params, kind: Kind) -> bool:
    """Whether a server offers that list."""
    if kind.extension is None:
        return kind.capability in capabilities
    return extension_settings(capabilities, kind.extension) is not None


def lacks(capabilities: Params, row: Method) -> str | None:
    """The capability or extension that a method needs and a server lacks; None if it lacks none."""
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
    """Whether a server notifies of changes of the list of `tools`, `resources` or `prompts`."""
    return _said(capabilities, capability, "listChanged")


def reports_updates(capabilities: Params) -> bool:
    """Whether a server offers subscriptions to resources (resources, Capabilities)."""
    return _said(capabilities, "resources", "subscribe")


def _said(capabilities: Params, capability: str, what: str) -> bool:
    try:
        return parse_object(capabilities.get(capability, EMPTY_OBJECT)).get(what) == _TRUE
    except InvalidMessage:
        return False
