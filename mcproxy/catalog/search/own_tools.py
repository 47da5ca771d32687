"""Definitions of the gateway's own five tools, which replace all others at an endpoint with `discovery: search`.

Three of them call other tools, each those of one effect. `features.search` answers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from msgspec import Raw

from mcproxy.catalog.annotations import is_destructive, is_read_only
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.tasks import Support

FIND: Final = "find_tools"
DESCRIBE: Final = "describe_tools"

HINT: Final = (
    "Tools are found with find_tools, described by describe_tools, and called with call_read, call_write or "
    "call_destructive."
)
"""Placed first in the instructions of an endpoint with search, as hosts cut long ones."""

MAX_FOUND: Final = 50
"""Tools that one search may ask for."""
MAX_DESCRIBED: Final = 20
"""Tools that may be described at once."""
MAX_SERVERS: Final = 40
"""Servers that the description of `find_tools` names."""


class ToolEffect(Enum):
    """The effect that a tool may have, by its annotations; each has a tool that calls it."""

    READ = "call_read"
    WRITE = "call_write"
    DESTRUCTIVE = "call_destructive"


CALLERS: Final = {effect.value: effect for effect in ToolEffect}


def effect_of(entry: Raw) -> ToolEffect:
    """The effect of a tool; without annotations it may destroy something (schema, `ToolAnnotations`: defaults)."""
    if is_read_only(entry):
        return ToolEffect.READ
    return ToolEffect.DESTRUCTIVE if is_destructive(entry) else ToolEffect.WRITE


def own_tools(servers: Sequence[str], *, tasks: bool) -> dict[str, Raw]:
    """The entries of the five, by name. `servers` are those behind the endpoint that the caller sees.

    `tasks` says whether the caller may call tools as tasks: then it may those that it calls through these.
    """
    return {name: raw(entry) for name, entry in _entries(servers, tasks=tasks)}


def _entries(servers: Sequence[str], *, tasks: bool) -> list[tuple[str, dict[str, Any]]]:
    named = ", ".join(servers[:MAX_SERVERS]) + (", ..." if len(servers) > MAX_SERVERS else "")
    entries = [
        _entry(
            FIND,
            "Find tools",
            "Searches the tools of all servers here by what they do, and returns the best as signatures, each with the "
            f"tool that calls it. Search before you say that something cannot be done. Servers: {named or 'none'}.",
            _FIND_SCHEMA,
            _READ_ONLY,
        ),
        _entry(
            DESCRIBE,
            "Describe tools",
            "Returns the full definitions of tools that find_tools named: descriptions, input and output schemas.",
            _DESCRIBE_SCHEMA,
            _READ_ONLY,
        ),
        *(_entry(effect.value, title, text, CALLER_SCHEMA, hints) for effect, title, text, hints in _CALLER_TEXTS),
    ]
    if tasks:
        for entry in entries[2:]:
            entry["execution"] = {"taskSupport": Support.OPTIONAL.value}
    return [(entry["name"], entry) for entry in entries]


def _entry(name: str, title: str, text: str, schema: object, hints: dict[str, bool]) -> dict[str, Any]:
    return {"name": name, "title": title, "description": text, "inputSchema": schema, "annotations": hints}


_READ_ONLY: Final = {"readOnlyHint": True, "openWorldHint": False}

_FIND_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What the tool should do: 'list open pull requests'."},
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_FOUND, "description": "How many tools at most."},
    },
    "required": ["query"],
    "additionalProperties": False,
}  # fmt: skip
_DESCRIBE_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "names": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": MAX_DESCRIBED,
            "description": "Names as find_tools gives them.",
        },
        "start": {"type": "integer", "minimum": 0, "description": "Byte at which to go on in a long one, asked alone."},
    },
    "required": ["names"],
    "additionalProperties": False,
}
CALLER_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The tool's name, as find_tools gives it."},
        "arguments": {"type": "object", "description": "The tool's own arguments."},
    },
    "required": ["name"],
    "additionalProperties": False,
}
_CALLER_TEXTS: Final = (
    (
        ToolEffect.READ,
        "Call a tool that reads",
        "Calls a tool that changes nothing, and returns its result unchanged.",
        {"readOnlyHint": True},
    ),
    (
        ToolEffect.WRITE,
        "Call a tool that writes",
        "Calls a tool that changes something and destroys nothing, and returns its result unchanged.",
        {"readOnlyHint": False, "destructiveHint": False},
    ),
    (
        ToolEffect.DESTRUCTIVE,
        "Call a tool that may destroy",
        "Calls a tool that may change or destroy something, or does not say, and returns its result unchanged.",
        {"readOnlyHint": False, "destructiveHint": True},
    ),
)

SCHEMAS: Final = {FIND: _FIND_SCHEMA, DESCRIBE: _DESCRIBE_SCHEMA, **dict.fromkeys(CALLERS, CALLER_SCHEMA)}
