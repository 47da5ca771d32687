"""Cuts arrays in structured content to their first items, to fit a number of bytes. Pure, and in steps.

A first pass adds up the bytes that must stay, so that the output schema still accepts what is left. A second pass
divides the available bytes from the root down, and reads no array beyond its share. Work is linear in the value, and
the number of values examined one by one is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, assert_never

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcproxy.catalog.arguments import subschemas
from mcproxy.catalog.instructions import shares
from mcproxy.catalog.json_schema import pointed_to
from mcproxy.concurrency.turns import Steps
from mcproxy.protocol.json.bounds import parse_value
from mcproxy.protocol.jsonrpc import InvalidMessage, may_hold, parse_object, raw

MAX_ITEMS: Final = 100_000
"""The most items that are left of an array."""
MAX_LEAST: Final = 64
"""The largest `minItems` of an array that is cut; other arrays pass unchanged."""
MAX_VALUES: Final = 100_000
"""The most values that are examined; a value with more is not cut."""
MAX_DEPTH: Final = 20
"""The depth to which structured content is searched for arrays."""
MAX_REFERENCES: Final = 20
"""The most references to follow from one schema to another."""
STEP: Final = 4 * 1024 * 1024
"""Bytes to read before other tasks get a turn: about five milliseconds."""

_VALUE_COST: Final = 1000
"""Bytes that take as long to read as one value takes to examine, with the object or array around it."""
_CONTAINER_COST: Final = 10_000
"""Likewise, for an object or array as a whole."""
_PASSING: Final = frozenset(
    {"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "type"}
)
"""Keywords under which a valid value stays valid when an array within it is shortened."""
_OF_OBJECTS: Final = _PASSING | {
    "properties", "required", "additionalProperties", "patternProperties", "$schema", "$defs", "definitions", "$id",
    "minProperties", "maxProperties", "propertyNames", "dependentRequired", "anyOf",
}  # fmt: skip
_OF_ARRAYS: Final = _PASSING | {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "anyOf"}

JsonSchema = Any

_Start: Final = msgspec.defstruct(
    "_Start", [(f"item{index}", Raw | UnsetType, UNSET) for index in range(MAX_LEAST)], array_like=True
)
_start: Final = msgspec.json.Decoder(_Start)
"""Decodes the first items of an array, and skips the rest many times faster than it could be decoded."""
_items: Final = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
"""Decodes items one by one. Numbers stay text, as they may be long."""


class _Whole(msgspec.Struct, frozen=True):
    """A value that is not cut."""

    value: Raw

    @property
    def least(self) -> int:
        return len(self.value)


class _Object(msgspec.Struct, frozen=True):
    value: Raw
    members: Mapping[str, _Measured]
    around: int
    """Bytes of its keys and of the punctuation between members."""
    least: int
    """The fewest bytes it can take."""


class _Array(msgspec.Struct, frozen=True):
    value: Raw
    first: Sequence[_Measured]
    """The items that it must keep."""
    items: JsonSchema
    """The schema of its items; None if items are not cut themselves."""
    level: int
    least: int


_Measured = _Whole | _Object | _Array


class _TooManyValues(Exception):
    pass


def shortened_arrays(value: Raw, schema: Raw | None, room: int) -> Steps[Raw | None]:
    """Returns a compact JSON value with its arrays cut to at most `room` bytes in total; None if that is impossible.

    If the value is valid under `schema`, so is what is returned. Without a schema any array may be cut.
    Arrays of one object share the room; where whole items would use less than half of it, the next is cut itself.
    """
    if len(value) <= room:
        return value
    try:
        root: JsonSchema = True if schema is None else parse_value(schema)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if schema is not None and may_hold(schema, b'"$id"') and _has_inner_id(root):
        return None
    cutting = _Cutting(root)
    try:
        part = yield from cutting.part(value, root, 0)
        return None if part.least > room else (yield from cutting.cut(part, room))
    except _TooManyValues:
        return None


def _first_items(value: Raw, number: int) -> list[Raw] | None:
    """The first items, up to a number; None for an array that cannot be decoded."""
    try:
        start = msgspec.structs.astuple(_start.decode(value))
    except (msgspec.MsgspecError, RecursionError):
        return None
    return [item for item in start[: max(0, number)] if item is not UNSET]


def _whole_items(value: Raw, room: int) -> tuple[int, int]:
    """The end of the last item that fits into `room` bytes with a closing bracket, and the number of items up to it."""
    text = bytes(memoryview(value)[:room]).decode(errors="ignore")
    end, number, at = 1, 0, 1
    with suppress(ValueError, RecursionError):
        while number < MAX_ITEMS:
            _, at = _items.raw_decode(text, at)
            if text[at : at + 1] != ",":
                break
            end, number, at = at, number + 1, at + 1
    return len(text[:end].encode()), number


class _Cutting:
    def __init__(self, root: JsonSchema) -> None:
        self._root = root
        self._values = 0
        self._read = 0
        """Bytes read since other tasks had a turn."""

    def part(self, value: Raw, schema: JsonSchema, level: int) -> Steps[_Measured]:
        """Measures a value: what may be cut of it, and what must stay. Raises _TooManyValues."""
        start = bytes(memoryview(value)[:1])
        if start not in (b"{", b"[") or len(value) == 2 or level > MAX_DEPTH:
            return _Whole(value)
        plain = _plain(schema, self._root, start)
        if plain is None:
            return _Whole(value)
        yield from self._reads(len(value) + _CONTAINER_COST)
        if start == b"{":
            return (yield from self._object(value, plain, level))
        return (yield from self._array(value, plain, level))

    def cut(self, part: _Measured, room: int) -> Steps[Raw]:
        """The value in at most `room` bytes, which must be no fewer than its least."""
        if len(part.value) <= room:
            return part.value
        match part:
            case _Whole():
                return part.value
            case _Object():
                members = yield from self._cut_all(list(part.members.values()), room - part.around)
                return raw(dict(zip(part.members, members, strict=True)))
            case _Array():
                return (yield from self._cut_array(part, room))
            case _:
                assert_never(part)

    def _object(self, value: Raw, schema: Mapping[str, Any], level: int) -> Steps[_Measured]:
        if not schema.keys() <= _OF_OBJECTS or "patternProperties" in schema:
            return _Whole(value)
        try:
            members = parse_object(value)
        except InvalidMessage:
            return _Whole(value)
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        parts: dict[str, _Measured] = {}
        yield from self._looks_at(len(members))
        for key, member in members.items():
            inner = properties.get(key, others) if isinstance(properties, dict) else None
            parts[key] = yield from self.part(member, inner, level + 1)
        around = 1 + sum(len(raw(key)) + 2 for key in parts)
        return _Object(value, parts, around, around + sum(each.least for each in parts.values()))

    def _array(self, value: Raw, schema: Mapping[str, Any], level: int) -> Steps[_Measured]:
        least = schema.get("minItems", 0)
        if not schema.keys() <= _OF_ARRAYS or not isinstance(least, int) or least > MAX_LEAST:
            return _Whole(value)
        # `uniqueItems`: two items that differ only at their ends would become equal.
        items = None if schema.get("uniqueItems") or "prefixItems" in schema else schema.get("items", True)
        first: list[_Measured] = []
        yield from self._looks_at(max(0, least))
        needed = _first_items(value, least)
        if needed is None:
            return _Whole(value)
        for item in needed:
            part = yield from self.part(item, items, level + 1)
            first.append(part)
        around = 1 + max(1, len(first))
        return _Array(value, first, items, level, around + sum(each.least for each in first))

    def _cut_all(self, parts: Sequence[_Measured], room: int) -> Steps[list[Raw]]:
        """Cuts each part to its share of the room; a part passes on what it does not use."""
        spare = room - sum(each.least for each in parts)
        more, spare = shares([len(each.value) - each.least for each in parts], spare), 0
        found: list[Raw] = []
        for part, extra in zip(parts, more, strict=True):
            given = part.least + extra + spare
            found.append((yield from self.cut(part, given)))
            spare = given - len(found[-1])
        return found

    def _cut_array(self, array: _Array, room: int) -> Steps[Raw]:
        first = yield from self._cut_all(array.first, room - 1 - max(1, len(array.first)))
        yield from self._reads(len(array.value) + _CONTAINER_COST)
        end, number = _whole_items(array.value, room)
        if number < len(first) or any(len(cut) < len(part.value) for cut, part in zip(first, array.first, strict=True)):
            return raw(first)
        yield from self._looks_at(number, counted=False)
        shown = bytes(memoryview(array.value)[:end])
        if 2 * end >= room:
            return Raw(shown + b"]")
        comma = b"," if number else b""
        rest = Raw(b"[" + bytes(memoryview(array.value)[end + len(comma) :]))
        left = room - end - len(comma) - 1
        for item in _first_items(rest, 1) or ():
            next_item = yield from self.part(item, array.items, array.level + 1)
            if next_item.least <= left:
                shown += comma + bytes((yield from self.cut(next_item, left)))
        return Raw(shown + b"]")

    def _looks_at(self, values: int, *, counted: bool = True) -> Steps[None]:
        self._values += values if counted else 0
        if self._values > MAX_VALUES:
            raise _TooManyValues
        yield from self._reads(values * _VALUE_COST)

    def _reads(self, size: int) -> Steps[None]:
        self._read += size
        if self._read >= STEP:
            self._read = 0
            yield


def _plain(schema: JsonSchema, root: JsonSchema, start: bytes) -> Mapping[str, Any] | None:
    """The only schema that applies to a value which begins so; None if several apply, or one that is not understood."""
    for _ in range(MAX_REFERENCES):
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            return None
        if "$ref" in schema:
            if not schema.keys() <= _PASSING | {"$ref"}:
                return None
            try:
                schema = pointed_to(root, str(schema["$ref"]))
            except KeyError:
                return None
            continue
        if "anyOf" not in schema:
            return schema
        # An optional value: `anyOf: [{type: array, ...}, {type: null}]`.
        if not schema.keys() <= _PASSING | {"anyOf"} or not isinstance(schema["anyOf"], list):
            return None
        kind = "object" if start == b"{" else "array"
        fitting = [each for each in schema["anyOf"] if _may_be(each, kind)]
        if len(fitting) != 1:
            return None
        schema = fitting[0]
    return None


def _may_be(schema: JsonSchema, kind: str) -> bool:
    if not isinstance(schema, dict) or "type" not in schema:
        return schema is not False
    kinds = schema["type"]
    return kind in kinds if isinstance(kinds, list) else bool(kinds == kind)


def _has_inner_id(root: JsonSchema) -> bool:
    """Whether a schema inside has an `$id`: references below it then resolve against that."""
    return any("$id" in schema for schema in subschemas(root) if schema is not root)
