"""Overrides of tools' arguments (`tools.overrides.NAME.arguments`): from what callers give to what upstreams get.

An argument may be fixed, hidden, renamed or described anew. Callers are shown a schema of what they may send, and other
arguments are refused: arguments valid under it are valid under the upstream's own schema. If that cannot be guaranteed,
the schema is refused with a reason, and the tool is not shown. Fixed values are validated here too; values taken from
the caller, with each call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Principal
from mcproxy.catalog.json_schema import Unjudged, pointed_to, value_flaw
from mcproxy.protocol.json.bounds import has_more, parse_value
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, Params, raw
from mcproxy.settings.upstreams.upstream import ArgumentOverride

INPUT_SCHEMA: Final = "inputSchema"

_KEPT: Final = frozenset({"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "type"})
"""Keywords that say nothing about single arguments, or nothing that an override could invalidate."""
_DROPPED: Final = frozenset({"default", "examples", "unevaluatedProperties", "additionalProperties"})
"""Keywords that are dropped: they name arguments by their old names, or are replaced."""
_REWRITTEN: Final = frozenset({"properties", "required", "dependentRequired", "$ref"})
_DEFINITIONS: Final = ("#/$defs/", "#/definitions/")
_DATA: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose values are data and hold no schemas."""
_BY_NAME: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""Keywords whose values are schemas by name, and a name may be that of a keyword."""
_SHAPES: Final[Mapping[str, Any]] = {
    "properties": dict[str, Any],
    "required": list[str],
    "dependentRequired": dict[str, list[str]],
}

_REFERENCE: Final = re.compile(r"\$\{caller\.(?:name|attributes\.(?P<attribute>[^{}]+))\}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_@:+][A-Za-z0-9_@:+.-]*")
"""A caller's value inside a longer text: it must not climb out of a path, nor begin an option or a query."""

_MOST_VALUES: Final = 10_000
"""Commas or brackets of an argument that is decoded to be judged; of a larger one its type is judged."""
_EMPTY: Final = {b"[": b"[]", b"{": b"{}"}
"""A value of the same type, by the first byte of an array or object."""

Schema = dict[str, Any]


class UnsupportedSchema(Exception):
    """A schema under which a tool's overrides cannot be guaranteed. The text is a phrase with the reason."""


class ArgumentRules(msgspec.Struct, frozen=True):
    """The way from a caller's arguments to the upstream's."""

    own_names: Mapping[str, str]
    """The upstream's own names, by the names that callers are shown."""
    fixed: Mapping[str, Any]
    """Fixed values by the upstream's own names; texts in them may refer to the caller."""
    schemas: Mapping[str, Any] = {}
    """The schemas of arguments whose values refer to the caller, by the upstream's own names."""
    root: Any = None
    """The upstream's `inputSchema`, which `schemas` may refer to."""
    shown: Mapping[str, Any] = {}
    """The `inputSchema` that callers are shown."""

    def final(self, arguments: Params, principal: Principal) -> Params:
        """The arguments that the upstream gets.

        Raises McpError for arguments that are not valid under the schema that callers are shown, in its names, and for
        an argument that does not take the caller's own value. What cannot be judged is left to the upstream.
        """
        unknown = next((name for name in arguments if name not in self.own_names), None)
        if unknown is not None:
            known = ", ".join(self.own_names) or "none"
            sentence = f"the argument {unknown[:64]!r} is not one that callers may send; known arguments: {known}"
            raise McpError(INVALID_PARAMS, sentence)
        _check_given(arguments, self.shown)
        given = {self.own_names[name]: value for name, value in arguments.items()}
        filled = {name: _filled(value, principal) for name, value in self.fixed.items()}
        for name, argument in self.schemas.items():
            _check_filled(argument, filled[name], self.root)
        return {**given, **{name: raw(value) for name, value in filled.items()}}


def overridden(tool: Params, overrides: Mapping[str, ArgumentOverride]) -> tuple[Raw, ArgumentRules]:
    """The `inputSchema` for callers, and the rules for their arguments. Raises UnsupportedSchema."""
    try:
        schema = parse_value(tool[INPUT_SCHEMA])
    except (KeyError, msgspec.MsgspecError, RecursionError) as error:
        raise UnsupportedSchema("it has no inputSchema that can be read") from error
    whole = _resolved(schema)
    properties: Mapping[str, Any] = whole.get("properties", {})
    missing = next((name for name in overrides if name not in properties), None)
    if missing is not None:
        raise UnsupportedSchema(f"its inputSchema has no argument {missing!r}")
    fixed = {name: override.constant for name, override in overrides.items() if override.is_fixed}
    absent = {name for name, override in overrides.items() if override.hide} - fixed.keys()
    _check_values(schema, properties, fixed)
    shown_names = _shown_names(properties, overrides)
    shown = {key: value for key, value in whole.items() if key in _KEPT}
    shown["type"] = "object"
    shown["properties"] = {
        shown_names[name]: _described(properties[name], overrides.get(name))
        for name in properties
        if name in shown_names
    }
    required, dependent = _requirements(whole, fixed, absent)
    if required:
        shown["required"] = [shown_names[name] for name in required]
    if dependent:
        shown["dependentRequired"] = {
            shown_names[name]: [shown_names[other] for other in others] for name, others in dependent.items()
        }
    shown["additionalProperties"] = False
    of_callers = {name: properties[name] for name, value in fixed.items() if _refers(value)}
    own_names = {shown: own for own, shown in shown_names.items()}
    return raw(shown), ArgumentRules(own_names, fixed, of_callers, schema if of_callers else None, shown)


def _resolved(schema: object) -> Schema:
    """The root schema, with a reference to a definition of its own followed. Raises UnsupportedSchema."""
    if not isinstance(schema, dict):
        raise UnsupportedSchema("its inputSchema is no object")
    _check_references(schema)
    seen: set[str] = set()
    whole: Schema = schema
    while "$ref" in whole:
        target = _target(whole["$ref"])
        if target in seen:
            raise UnsupportedSchema(f"its inputSchema refers to itself ({target})")
        seen.add(target)
        rest = {key: value for key, value in whole.items() if key != "$ref"}
        definition = _definition(schema, target)
        both = (rest.keys() & definition.keys()) - {"title", "description", "$comment"}
        if both:
            raise UnsupportedSchema(f"its inputSchema has {min(both)!r} beside a reference that has it too")
        whole = {**definition, **rest}
    kind = whole.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise UnsupportedSchema("its inputSchema is not of an object")
    strange = whole.keys() - _KEPT - _DROPPED - _REWRITTEN
    # Keywords that constrain arguments together might need one by its old name, or without the fixed ones.
    known = [keyword for keyword in strange if not keyword.startswith("x-")]
    if known:
        raise UnsupportedSchema(f"its inputSchema uses {min(known)!r} for all arguments together")
    for keyword, shape in _SHAPES.items():
        try:
            msgspec.convert(whole.get(keyword, shape()), shape)
        except msgspec.ValidationError as error:
            raise UnsupportedSchema(f"its inputSchema has a malformed {keyword!r}") from error
    return whole


def _check_references(schema: object) -> None:
    """Raises UnsupportedSchema for a reference that an override might change: any but one to a definition."""
    for node in subschemas(schema):
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword in node:
                _target(node[keyword])
        if node is not schema and "$id" in node:
            raise UnsupportedSchema("its inputSchema has an $id within it")


def _target(reference: object) -> str:
    """The definition in `$defs` that a reference names. Raises UnsupportedSchema for another reference."""
    if not isinstance(reference, str) or not reference.startswith(_DEFINITIONS):
        raise UnsupportedSchema(f"its inputSchema has a reference that is not to one of its $defs: {reference!r}")
    return reference


def subschemas(root: object) -> Iterator[Schema]:
    """The objects that are schemas within a schema, itself among them."""
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, dict):
            yield node
            for keyword, value in node.items():
                if keyword in _BY_NAME and isinstance(value, dict):
                    pending.extend(value.values())
                elif keyword not in _DATA:
                    pending.append(value)


def _definition(schema: Schema, target: str) -> Schema:
    try:
        found = pointed_to(schema, target)
    except KeyError:
        found = None
    if not isinstance(found, dict):
        raise UnsupportedSchema(f"its inputSchema refers to {target!r}, which it does not have")
    return found


def _check_values(root: object, properties: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raises UnsupportedSchema for a fixed value that its argument does not take, or of which that cannot be said.

    A value of the caller is judged when it is known; before it, whether its argument takes a text at all.
    """
    for name, value in fixed.items():
        schema = properties[name]
        try:
            found = value_flaw(schema, value, root)
            if _refers(value):
                found = value_flaw(_type_of(schema), value, root)
        except Unjudged as why:
            raise UnsupportedSchema(f"whether the value of {name!r} is valid cannot be determined: {why}") from why
        if found is not None:
            raise UnsupportedSchema(f"its inputSchema does not take the value of {name!r}, which {found}")


def _type_of(schema: Any) -> Any:
    """The part of a schema that concerns types alone."""
    return {"type": schema["type"]} if isinstance(schema, dict) and "type" in schema else schema is not False


def _refers(value: object) -> bool:
    match value:
        case str():
            return _REFERENCE.search(value) is not None
        case list():
            return any(map(_refers, value))
        case dict():
            return any(map(_refers, value.values()))
        case _:
            return False


def _shown_names(properties: Iterable[str], overrides: Mapping[str, ArgumentOverride]) -> dict[str, str]:
    """The names that callers are shown, by the upstream's own. Raises UnsupportedSchema where two come out the same."""
    shown: dict[str, str] = {}
    taken: set[str] = set()
    for name in properties:
        override = overrides.get(name)
        if override is not None and (override.is_fixed or override.hide):
            continue
        wanted = name if override is None or override.rename is None else override.rename
        if wanted in taken:
            raise UnsupportedSchema(f"two of its arguments would be called {wanted!r}")
        shown[name] = wanted
        taken.add(wanted)
    return shown


def _described(schema: Any, override: ArgumentOverride | None) -> Any:
    if override is None or override.description is None:
        return schema
    return {**(schema if isinstance(schema, dict) else {}), "description": override.description}


def _requirements(whole: Schema, fixed: Mapping[str, Any], absent: set[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The arguments that callers must give, and those that they must give with others, by the upstream's own names.

    Raises UnsupportedSchema where an argument that is never sent would be needed.
    """
    dependent: Mapping[str, list[str]] = whole.get("dependentRequired", {})
    required = dict.fromkeys(whole.get("required", ()))
    pending = [name for name in (*required, *fixed) if name in dependent]
    while pending:
        for other in dependent[pending.pop()]:
            if other not in required:
                required[other] = None
                pending += [other] if other in dependent else []
    needed = next((name for name in required if name in absent), None)
    if needed is not None:
        raise UnsupportedSchema(f"the argument {needed!r} is hidden and required: give it a default")
    unlisted = next((name for name in required if name not in whole.get("properties", {})), None)
    if unlisted is not None:
        raise UnsupportedSchema(f"its inputSchema requires {unlisted!r} and does not describe it")
    left = {}
    for name, others in dependent.items():
        if name in fixed or name in absent or name not in whole.get("properties", {}):
            continue
        if hidden := next((other for other in others if other in absent), None):
            raise UnsupportedSchema(f"the argument {hidden!r} is hidden, and {name!r} needs it: give it a default")
        if strange := next((other for other in others if other not in whole["properties"]), None):
            raise UnsupportedSchema(f"its inputSchema requires {strange!r} and does not describe it")
        left[name] = [other for other in others if other not in fixed]
    return [name for name in required if name not in fixed], left


def _filled(value: Any, principal: Principal) -> Any:
    """`value` with the references to the caller filled in. Raises McpError if the caller lacks such a value."""
    match value:
        case str():
            whole = _REFERENCE.fullmatch(value)
            if whole is not None:
                return _of_caller(whole, principal)
            return _REFERENCE.sub(lambda found: _checked(_of_caller(found, principal)), value)
        case list():
            return [_filled(item, principal) for item in value]
        case dict():
            return {key: _filled(member, principal) for key, member in value.items()}
        case _:
            return value


def _check_given(arguments: Params, shown: Mapping[str, Any]) -> None:
    """Raises McpError for arguments that are not valid under the schema `shown`."""
    missing = next((name for name in shown.get("required", ()) if name not in arguments), None)
    if missing is not None:
        raise McpError(INVALID_PARAMS, f"the argument {missing[:64]!r} is required")
    for name, others in shown.get("dependentRequired", {}).items():
        missing = next((other for other in others if other not in arguments), None)
        if name in arguments and missing is not None:
            raise McpError(
                INVALID_PARAMS, f"the argument {name[:64]!r} is given without {missing[:64]!r}, which it needs"
            )
    for name, value in arguments.items():
        found = _flaw_of_given(shown.get("properties", {}).get(name, True), value, shown)
        if found is not None:
            raise McpError(INVALID_PARAMS, f"the argument {name[:64]!r} {found}")


def _flaw_of_given(schema: Any, value: Raw, root: object) -> str | None:
    """The flaw of a caller's value, as a phrase; None if it is valid or cannot be judged."""
    if schema is True or schema == {}:
        return None
    text = bytes(value)
    if any(has_more(text, mark, _MOST_VALUES) for mark in (b",", b"[", b"{")):
        schema = _type_of(schema)
        if not isinstance(schema, dict):
            return None if schema else "is not allowed"
        text = _EMPTY.get(text[:1], text)
    try:
        return value_flaw(schema, msgspec.json.decode(text), root)
    except Unjudged:
        return None
    except (msgspec.MsgspecError, RecursionError):
        return "has a number that is too large, or too many levels, to be checked"


def _check_filled(schema: Any, value: object, root: object) -> None:
    """Raises McpError for a caller's value that is not valid for the argument. Does not reveal the value."""
    try:
        found = value_flaw(schema, value, root)
    except Unjudged as why:
        found = f"cannot be judged by its schema: {why}"
    if found is not None:
        sentence = f"this tool puts a value of its caller into an argument that does not take yours, which {found}"
        raise McpError(INVALID_PARAMS, sentence, reason=Reason.DENIED)


def _of_caller(reference: re.Match[str], principal: Principal) -> str:
    attribute = reference["attribute"]
    if attribute is None:
        return principal.name
    found = dict(principal.attributes).get(attribute)
    if found is None:
        sentence = f"this tool needs the attribute {attribute!r} of its caller, which your credentials do not give"
        raise McpError(INVALID_PARAMS, sentence, reason=Reason.DENIED)
    return found


def _checked(text: str) -> str:
    if not _PLAIN.fullmatch(text):
        sentence = "this tool puts a value of its caller into a text, and yours has characters that it may not have"
        raise McpError(INVALID_PARAMS, sentence, reason=Reason.DENIED)
    return text
