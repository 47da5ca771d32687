"""Writes a tool in one line, as `find_tools` gives it: `git__log(repo: str, limit?: int) - Shows commits.`

For models to read, never parsed: a server's text is shortened and kept on one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from mcproxy.protocol.json.bounds import Bounded

MAX_SUMMARY: Final = 160
"""Characters of a tool's description."""
MAX_PARAMETERS: Final = 12
"""Parameters that are named; required ones first."""
MAX_ENUM: Final = 40
"""Characters of a choice of values; a longer one is given as its type."""
MAX_TOOL_NAME: Final = 256
"""Characters of a tool's name; none that the gateway makes is as long."""
MAX_NAME: Final = 64
"""Characters of a parameter's name."""
MAX_TYPE: Final = 80
"""Characters of a parameter's type; of a longer one only the outermost part is given."""
MAX_LEVELS: Final = 4
"""Levels of references, arrays and alternatives that are followed."""
MAX_ALTERNATIVES: Final = 5
"""Types of a parameter beyond which it is given as any type."""

ANY: Final = "any"
_NAME: Final = re.compile(r"[\w./:@-]+")

_TYPES: Final = {
    "string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "object",
    "null": "null",
}  # fmt: skip


class _Schema(msgspec.Struct):
    properties: dict[str, Any] = {}
    required: list[Any] = []
    defs: Any = msgspec.field(default=None, name="$defs")
    definitions: Any = None


class _ReadableTool(msgspec.Struct):
    name: str = ""
    title: Any = None
    description: Any = None
    schema: Raw = msgspec.field(default=Raw(b"{}"), name="inputSchema")


_tool = Bounded(_ReadableTool)
_schema = Bounded(_Schema)


class ToolSummary(msgspec.Struct, frozen=True):
    """The parts of a tool's entry that people and models read; what is malformed counts as absent."""

    title: str
    description: str
    properties: Mapping[str, Any]
    """The schemas of its parameters, by name."""
    required: frozenset[str]
    definitions: Mapping[str, Any] = {}
    """Schemas that others refer to, by place and name."""


def summary(entry: Raw) -> ToolSummary:
    """The parts of an entry of `tools/list`; empty ones where it is malformed. Raises nothing."""
    try:
        tool = _tool.decode(entry)
    except (msgspec.MsgspecError, RecursionError):
        return ToolSummary("", "", {}, frozenset())
    try:
        schema = _schema.decode(tool.schema)
    except (msgspec.MsgspecError, RecursionError):
        schema = _Schema()
    required = frozenset(name for name in schema.required if isinstance(name, str))
    definitions = {"#/$defs": schema.defs, "#/definitions": schema.definitions}
    return ToolSummary(_text(tool.title), _text(tool.description), schema.properties, required, definitions)


def signature(name: str, entry: Raw) -> str:
    """A tool as one line: its name, required parameters first, and the start of its description."""
    tool = summary(entry)
    ordered = sorted(tool.properties, key=lambda parameter: parameter not in tool.required)
    given = [_parameter(parameter, tool) for parameter in ordered[:MAX_PARAMETERS]]
    if len(ordered) > MAX_PARAMETERS:
        given.append("...")
    line = f"{_readable_name(name)}({', '.join(given)})"
    about = first_words(tool.description or tool.title, MAX_SUMMARY)
    return f"{line} - {about}" if about else line


def _readable_name(name: str) -> str:
    """The name as it is called; one with other signs than names should have as JSON, so that it passes for no line."""
    return (name if _NAME.fullmatch(name) else json.dumps(name))[:MAX_TOOL_NAME]


def first_words(text: str, most: int) -> str:
    """The beginning of a text without line breaks and control characters, up to the end of a sentence or word."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * most]).split())
    if len(line) <= most:
        return line
    sentence, end, _ = line[: most + 1].rpartition(". ")
    return sentence + end.rstrip() if len(sentence) > most // 4 else line[:most].rpartition(" ")[0] + " ..."


def _parameter(name: str, tool: ToolSummary) -> str:
    mark = "" if name in tool.required else "?"
    return f"{first_words(name, MAX_NAME)}{mark}: {_type(tool.properties[name], tool.definitions)}"


def _type(schema: object, definitions: Mapping[str, Any]) -> str:
    for levels in (MAX_LEVELS, 1, 0):
        found = "|".join(_types(schema, definitions, levels))
        if len(found) <= MAX_TYPE:
            return found
    return ANY


def _types(schema: object, definitions: Mapping[str, Any], levels: int) -> list[str]:
    """The types that a value may have, without repetitions; ANY alone if there are others, or if nested too deep."""
    if not isinstance(schema, dict):
        return [ANY]
    reference, kinds = schema.get("$ref"), schema.get("type")
    if (choice := _choice(schema)) is not None:
        return [choice]
    if kinds is None and isinstance(reference, str) and levels > 0:
        return _types(_definition(reference, definitions), definitions, levels - 1)
    alternatives = next((schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)), None)
    if kinds is None and alternatives is not None:
        if levels == 0 or len(alternatives) > MAX_ALTERNATIVES:
            return [ANY]
        return _union(_types(each, definitions, levels - 1) for each in alternatives)
    named = kinds if isinstance(kinds, list) else [kinds]
    if len(named) > len(_TYPES):
        return [ANY]
    return _union([_named_type(kind, schema, definitions, levels)] for kind in named)


def _definition(reference: str, definitions: Mapping[str, Any]) -> object:
    place, _, name = reference.rpartition("/")
    known = definitions.get(place)
    return known.get(unquote(name)) if isinstance(known, dict) else None


def _union(types: Iterable[Sequence[str]]) -> list[str]:
    found = dict.fromkeys(chain.from_iterable(types))
    return [ANY] if ANY in found or not found else list(found)


def _named_type(kind: object, schema: Mapping[str, Any], definitions: Mapping[str, Any], levels: int) -> str:
    if kind == "array" and levels > 0 and (items := "|".join(_types(schema.get("items"), definitions, levels - 1))):
        return _TYPES["array"] if items == ANY else f"{_TYPES['array']}[{items}]"
    return _TYPES.get(kind, ANY) if isinstance(kind, str) else ANY


def _choice(schema: Mapping[str, Any]) -> str | None:
    """The values of an enumeration; None if it is none, too long, or has other values."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not 0 < len(values) <= MAX_ENUM or any(map(_is_long, values)):
        return None
    shown = "|".join(json.dumps(value, ensure_ascii=True) for value in values)
    return shown if len(shown) <= MAX_ENUM else None


def _is_long(value: object) -> bool:
    return isinstance(value, dict | list) or (isinstance(value, str) and len(value) > MAX_ENUM)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
