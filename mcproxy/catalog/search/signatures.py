"""A tool in one line, as `find_tools` gives it: `git__log(repo: str, limit?: int) - Shows commits.`

Written for models to read and never parsed: what a server wrote is shortened, and kept on its line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

MAX_SUMMARY: Final = 160
"""Characters of a tool's description."""
MAX_PARAMETERS: Final = 12
"""Parameters that are named; required ones first."""
MAX_ENUM: Final = 40
"""Characters of a choice of values; a longer one is given as its type."""
MAX_NAME: Final = 64
"""Characters of a parameter's name."""

_TYPES: Final = {
    "string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "object",
    "null": "null",
}  # fmt: skip


class _Schema(msgspec.Struct):
    properties: dict[str, Any] = {}
    required: list[Any] = []


class _ReadableTool(msgspec.Struct):
    name: str = ""
    title: Any = None
    description: Any = None
    schema: Raw = msgspec.field(default=Raw(b"{}"), name="inputSchema")


_tool = msgspec.json.Decoder(_ReadableTool)
_schema = msgspec.json.Decoder(_Schema)


class ToolSummary(msgspec.Struct, frozen=True):
    """The parts of a tool's entry that people and models read; what is malformed counts as absent."""

    title: str
    description: str
    properties: Mapping[str, Any]
    """The schemas of its parameters, by name."""
    required: frozenset[str]


def summary(entry: Raw) -> ToolSummary:
    try:
        tool = _tool.decode(entry)
    except (msgspec.MsgspecError, RecursionError):
        return ToolSummary("", "", {}, frozenset())
    try:
        schema = _schema.decode(tool.schema)
    except (msgspec.MsgspecError, RecursionError):
        schema = _Schema()
    required = frozenset(name for name in schema.required if isinstance(name, str))
    return ToolSummary(_text(tool.title), _text(tool.description), schema.properties, required)


def signature(name: str, entry: Raw) -> str:
    tool = summary(entry)
    ordered = sorted(tool.properties, key=lambda parameter: parameter not in tool.required)
    given = [_parameter(parameter, tool) for parameter in ordered[:MAX_PARAMETERS]]
    if len(ordered) > MAX_PARAMETERS:
        given.append("...")
    line = f"{name}({', '.join(given)})"
    about = abridged(tool.description or tool.title, MAX_SUMMARY)
    return f"{line} - {about}" if about else line


def abridged(text: str, most: int) -> str:
    """The beginning of a text without line breaks and control characters, up to the end of a sentence or word."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * most]).split())
    if len(line) <= most:
        return line
    sentence, end, _ = line[: most + 1].rpartition(". ")
    return sentence + end.rstrip() if len(sentence) > most // 4 else line[:most].rpartition(" ")[0] + " ..."


def _parameter(name: str, tool: ToolSummary) -> str:
    mark = "" if name in tool.required else "?"
    return f"{abridged(name, MAX_NAME)}{mark}: {_type(tool.properties[name])}"


def _type(schema: object) -> str:
    if not isinstance(schema, dict):
        return "any"
    choice = schema.get("enum")
    if isinstance(choice, list):
        values = "|".join(json.dumps(value, ensure_ascii=True) for value in choice[:MAX_ENUM])
        if len(values) <= MAX_ENUM:
            return values
    kind = schema.get("type")
    if isinstance(kind, list):
        return "|".join(_TYPES.get(one, "any") for one in kind if isinstance(one, str)) or "any"
    if kind == "array" and isinstance(items := schema.get("items"), dict) and isinstance(items.get("type"), str):
        return f"list[{_TYPES.get(items['type'], 'any')}]"
    return _TYPES.get(kind, "any") if isinstance(kind, str) else "any"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
