"""Shortens results of tools that are too large for a model: long texts to head and tail, long arrays to their start.

Pure: returns what is shown and the whole of what is left out; keeps nothing. What an output schema might then refuse is
not shortened. Images, audio and blobs pass: a part of one is of no use, and hosts do not give them to models as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from mcproxy.protocol.json_bounds import TooMany, parse_array
from mcproxy.protocol.jsonrpc import InvalidMessage, Params, parse_object, parse_text, raw

MAX_ITEMS: Final = 100_000
"""Items of an array, beyond which it passes as it is."""
MAX_STEPS: Final = 20
"""Arrays of one result that are shortened."""
MAX_DEPTH: Final = 20
"""Levels of structured content at which arrays are looked for."""
MIN_TEXT: Final = 1024
"""Bytes that are left of a text at least."""

_PASSING: Final = frozenset(
    {"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "type"}
)
"""Keywords under which a value that is valid stays so when an array within it is shortened."""
_OF_OBJECTS: Final = _PASSING | {
    "properties", "required", "additionalProperties", "patternProperties", "$schema", "$defs", "definitions", "$id",
    "minProperties", "maxProperties", "propertyNames", "dependentRequired", "anyOf",
}  # fmt: skip
_OF_ARRAYS: Final = _PASSING | {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "anyOf"}
_DEFINITIONS: Final = ("#/$defs/", "#/definitions/")

ValuePath = tuple[str | int, ...]
JsonSchema = Any


class LongText(NamedTuple):
    """A text of a result: its block, and the text as UTF-8."""

    block: int
    text: bytes


class _Candidate(NamedTuple):
    """An array that may be shortened."""

    path: ValuePath
    items: list[Raw]
    least: int
    """Items that it must have."""

    @property
    def size(self) -> int:
        return sum(map(len, self.items)) + len(self.items) + 1


def compact(value: Raw) -> Raw:
    """A JSON value without the white space between its tokens: what is left is what a limit is about."""
    try:
        return Raw(msgspec.json.format(value, indent=-1))
    except (msgspec.MsgspecError, RecursionError):
        return value


def shares(sizes: Sequence[int], room: int) -> list[int]:
    """Bytes for each of several texts, `room` together: short ones get what they need, the others equal parts."""
    given = [0] * len(sizes)
    left, order = room, sorted(range(len(sizes)), key=lambda index: sizes[index])
    for done, index in enumerate(order):
        given[index] = min(sizes[index], max(0, left) // (len(order) - done))
        left -= given[index]
    return given


def head_and_tail(text: bytes, room: int) -> tuple[bytes, bytes]:
    """The beginning and the end of a text, `room` bytes together, cut between characters."""
    head = boundary(text, room * 2 // 3)
    tail = boundary(text, max(head, len(text) - room // 3))
    return text[:head], text[tail:]


def boundary(text: bytes, at: int) -> int:
    """The first place from `at` on that is between two characters of UTF-8."""
    at = min(max(at, 0), len(text))
    while at < len(text) and text[at] & 0b1100_0000 == 0b1000_0000:
        at += 1
    return at


def shortened_arrays(value: Raw, schema: Raw | None, room: int) -> Raw | None:
    """A compact JSON value with its longest arrays cut to their start, in at most `room` bytes; None if that cannot be.

    Of a value that is valid under `schema`, what is returned is valid too. Without a schema any array may be cut.
    """
    try:
        root: JsonSchema = True if schema is None else msgspec.json.decode(schema)
    except (msgspec.MsgspecError, RecursionError):
        return None
    for _ in range(MAX_STEPS):
        if len(value) <= room:
            return value
        found = [each for each in _candidates(value, root, root, ()) if len(each.items) > each.least]
        if not found:
            return None
        longest = max(found, key=lambda each: each.size)
        kept = _start(longest, len(value) - room)
        value = _replaced(value, longest.path, raw(kept))
    return value if len(value) <= room else None


def _start(array: _Candidate, excess: int) -> list[Raw]:
    """Its first items, without so many bytes at the end; as many as it must have stay."""
    items = list(array.items)
    while len(items) > array.least and excess > 0:
        excess -= len(items.pop()) + 1
    return items


def _replaced(value: Raw, path: ValuePath, by: Raw) -> Raw:
    if not path:
        return by
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        items = parse_array(value, MAX_ITEMS)
        items[key] = _replaced(items[key], rest, by)
        return raw(items)
    members = parse_object(value)
    return raw({**members, key: _replaced(members[key], rest, by)})


def _candidates(value: Raw, schema: JsonSchema, root: JsonSchema, path: ValuePath) -> Iterator[_Candidate]:
    if len(path) > MAX_DEPTH:
        return
    start = bytes(memoryview(value)[:1])
    plain = _plain(schema, root, start)
    if plain is None:
        return
    if start == b"{":
        yield from _in_object(value, plain, root, path)
    elif start == b"[":
        yield from _in_array(value, plain, root, path)


def _in_object(value: Raw, schema: Mapping[str, Any], root: JsonSchema, path: ValuePath) -> Iterator[_Candidate]:
    if not schema.keys() <= _OF_OBJECTS or "patternProperties" in schema:
        return
    properties = schema.get("properties", {})
    try:
        members = parse_object(value)
    except InvalidMessage:
        return
    for key, member in members.items():
        inner = properties.get(key, schema.get("additionalProperties", True)) if isinstance(properties, dict) else None
        yield from _candidates(member, inner, root, (*path, key))


def _in_array(value: Raw, schema: Mapping[str, Any], root: JsonSchema, path: ValuePath) -> Iterator[_Candidate]:
    if not schema.keys() <= _OF_ARRAYS:
        return
    least = schema.get("minItems", 0)
    try:
        items = parse_array(value, MAX_ITEMS)
    except (TooMany, msgspec.MsgspecError, RecursionError):
        return
    yield _Candidate(path, items, least if isinstance(least, int) else len(items))
    if schema.get("uniqueItems") or "prefixItems" in schema:
        return  # two items that differ at their ends would be the same
    for index, item in enumerate(items[:MAX_STEPS]):
        yield from _candidates(item, schema.get("items", True), root, (*path, index))


def _plain(schema: JsonSchema, root: JsonSchema, start: bytes) -> Mapping[str, Any] | None:
    """The one schema that speaks of a value which begins so; None where several do, or one that is not understood."""
    for _ in range(MAX_STEPS):
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            return None
        if "$ref" in schema:
            if not schema.keys() <= _PASSING | {"$ref"}:
                return None
            schema = _definition(root, schema["$ref"])
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


def _definition(root: JsonSchema, target: object) -> JsonSchema:
    if not isinstance(target, str) or not target.startswith(_DEFINITIONS):
        return None
    found = root
    for part in target.removeprefix("#/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def texts(blocks: Sequence[Raw]) -> Iterator[LongText]:
    """The texts among the blocks of a result: those of type `text`, and those of embedded resources."""
    for index, block in enumerate(blocks):
        try:
            members = parse_object(block)
            holder = members if "text" in members else parse_object(members.get("resource", Raw(b"{}")))
        except InvalidMessage:
            continue
        text = parse_text(holder.get("text", b""))
        if text is not None:
            yield LongText(index, text.encode(errors="replace"))


def with_text(block: Raw, text: str) -> Raw:
    """A block with another text."""
    members = parse_object(block)
    if "text" in members:
        return raw({**members, "text": raw(text)})
    resource: Params = parse_object(members["resource"])
    return raw({**members, "resource": raw({**resource, "text": raw(text)})})
