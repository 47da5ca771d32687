"""Judge JSON values by JSON Schema 2020-12 (core and validation), in a bounded number of steps.

Raises Unjudged for a schema that is malformed, uses a keyword that is not supported here, or takes too long: servers
choose the schemas, and "valid" must be true. `format` and other annotations are no constraints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import chain, combinations
from typing import Any, Final
from urllib.parse import unquote

import msgspec

MAX_STEPS: Final = 2000
"""Steps of one judgement: each schema applied to a value is one, or more if it is large."""
STEP_SIZE: Final = 64
"""Entries of a schema, or of values compared, that count as a further step."""
PATTERN_STEPS: Final = 20
"""Steps of matching a pattern, and one more for each PATTERN_SIZE pairs of its characters and the text's."""
PATTERN_SIZE: Final = 1024
MAX_PATTERN: Final = 1000
"""Characters of a pattern."""
MAX_DEPTH: Final = 64
"""Schemas within each other on the way to a value."""
MAX_PHRASE: Final = 300
"""Characters of a flaw's description."""

_UNJUDGED: Final = frozenset(
    {
        "$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties",
        "additionalItems", "dependencies", "divisibleBy", "disallow", "extends",
    }
)  # fmt: skip
"""Keywords that may constrain values, of this revision or earlier ones, and are not understood here."""

_FOREIGN: Final = re.compile(r"\\(?![dDwWsSbBnrtfv\W_])|\(\?(?!:)|\[\[?:|\[\^?\]")
"""What RE2 reads otherwise than ECMA 262 does, or one of them alone."""
_LINES: Final = str.maketrans("", "", "\n\t")


class Unjudged(Exception):
    """The validity of a value cannot be determined. The text is a phrase about the schema that says why."""


class _Keywords(msgspec.Struct, rename="camel"):
    """A schema's keywords that constrain values; None for those that it does not have."""

    enum: list[Any] | None = None
    const: Any = msgspec.UNSET
    type: str | list[str] | None = None
    minimum: int | float | None = None
    maximum: int | float | None = None
    exclusive_minimum: int | float | None = None
    exclusive_maximum: int | float | None = None
    multiple_of: int | float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    items: Any = True
    prefix_items: list[Any] = []
    contains: Any = None
    min_contains: int = 1
    max_contains: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    unique_items: bool = False
    properties: dict[str, Any] = {}
    pattern_properties: dict[str, Any] = {}
    additional_properties: Any = True
    property_names: Any = True
    required: list[str] = []
    dependent_required: dict[str, list[str]] = {}
    dependent_schemas: dict[str, Any] = {}
    min_properties: int | None = None
    max_properties: int | None = None
    all_of: list[Any] = []
    any_of: list[Any] | None = None
    one_of: list[Any] | None = None
    not_: Any = msgspec.field(name="not", default=False)
    if_: Any = msgspec.field(name="if", default=None)
    then: Any = True
    else_: Any = msgspec.field(name="else", default=True)
    ref: str | None = msgspec.field(name="$ref", default=None)


def value_flaw(schema: object, value: object, root: object) -> str | None:
    """The flaw of a value, as a phrase; None if it is valid. `root` resolves references. Raises Unjudged."""
    try:
        found = _Judgement(root).flaw(schema, value, 0)
    except RecursionError as error:
        raise Unjudged("it is too deep to judge") from error
    return None if found is None else found[:MAX_PHRASE]


def pointed_to(root: object, reference: str) -> object:
    """What a reference within one document (`#/$defs/node`) is to. Raises KeyError where there is no such thing.

    Anchors (`#node`) are not looked for. A pointer is percent-encoded there (RFC 6901, section 6).
    """
    mark, pointer = reference[:1], unquote(reference[1:])
    start, *parts = pointer.split("/")
    if mark != "#" or start:
        raise KeyError(reference)
    found = root
    for part in parts:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict):
            raise KeyError(reference)
        found = found[name]
    return found


class _Judgement:
    """One judgement, with the steps that are left of it."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._left = MAX_STEPS

    def flaw(self, schema: object, value: Any, depth: int) -> str | None:
        self._take(1 if depth <= MAX_DEPTH else MAX_STEPS + 1)
        if isinstance(schema, bool):
            return None if schema else "is not allowed"
        if not isinstance(schema, dict):
            raise Unjudged("it has a part that is no schema")
        self._take(_entries(schema) // STEP_SIZE)
        if unknown := _UNJUDGED & schema.keys():
            raise Unjudged(f"it uses {min(unknown)!r}")
        try:
            keywords = msgspec.convert(schema, _Keywords)
        except msgspec.ValidationError as error:
            raise Unjudged(f"it is malformed: {error}") from error
        of_kind, combined = self._of_kind(keywords, value, depth), self._combined(keywords, value, depth)
        return next(chain(_of_any(keywords, value), of_kind, combined), None)

    def _take(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise Unjudged("it takes too long to judge")

    def _is_valid(self, schema: object, value: object, depth: int) -> bool:
        return self.flaw(schema, value, depth + 1) is None

    def _of_kind(self, known: _Keywords, value: Any, depth: int) -> Iterator[str]:
        match value:
            case bool() | None:
                return
            case str():
                yield from self._of_text(known, value)
            case int() | float():
                yield from _of_number(known, value)
            case list():
                yield from self._of_array(known, value, depth)
            case dict():
                yield from self._of_object(known, value, depth)

    def _of_text(self, known: _Keywords, value: str) -> Iterator[str]:
        yield from _of_size(len(value), known.min_length, known.max_length, "characters")
        if known.pattern is not None and not self._matches(known.pattern, value):
            yield f"does not match {known.pattern[:100]!r}"

    def _matches(self, pattern: str, text: str) -> bool:
        self._take(PATTERN_STEPS + len(pattern) * len(text) // PATTERN_SIZE)
        return _matches(pattern, text)

    def _of_array(self, known: _Keywords, value: list[Any], depth: int) -> Iterator[str]:
        yield from _of_size(len(value), known.min_items, known.max_items, "items")
        if known.unique_items:
            self._take(len(value) * sum(map(_size, value)) // (2 * STEP_SIZE))
            if any(_equals(one, other) for one, other in combinations(value, 2)):
                yield "has an item twice"
        first = len(known.prefix_items)
        for index, item in enumerate(value):
            schema = known.prefix_items[index] if index < first else known.items
            yield from self._within(f"item {index}", schema, item, depth)
        if known.contains is not None:
            found = sum(self._is_valid(known.contains, item, depth) for item in value)
            if found < known.min_contains or (known.max_contains is not None and found > known.max_contains):
                yield "does not have the items that it has to contain"

    def _of_object(self, known: _Keywords, value: dict[str, Any], depth: int) -> Iterator[str]:
        yield from _of_size(len(value), known.min_properties, known.max_properties, "members")
        for name in known.required:
            if name not in value:
                yield f"lacks {name!r}"
        for name, others in known.dependent_required.items():
            if name in value and not value.keys() >= set(others):
                yield f"lacks what {name!r} needs"
        for name, schema in known.dependent_schemas.items():
            if name in value:
                yield from self._within("", schema, value, depth)
        for name, member in value.items():
            yield from self._within(f"the name {name!r}", known.property_names, name, depth)
            schemas = [known.properties[name]] if name in known.properties else []
            schemas += [schema for pattern, schema in known.pattern_properties.items() if self._matches(pattern, name)]
            for schema in schemas or [known.additional_properties]:
                yield from self._within(repr(name), schema, member, depth)

    def _combined(self, known: _Keywords, value: object, depth: int) -> Iterator[str]:
        if known.ref is not None:
            try:
                target = pointed_to(self._root, known.ref)
            except KeyError as error:
                raise Unjudged(f"it refers to {known.ref[:100]!r}, which it does not have") from error
            yield from self._within("", target, value, depth)
        for schema in known.all_of:
            yield from self._within("", schema, value, depth)
        if known.any_of is not None and not any(self._is_valid(schema, value, depth) for schema in known.any_of):
            yield "is of no kind that is allowed"
        if known.one_of is not None and sum(self._is_valid(schema, value, depth) for schema in known.one_of) != 1:
            yield "is not of one kind that is allowed"
        if known.not_ is not False and self._is_valid(known.not_, value, depth):
            yield "is of a kind that is not allowed"
        if known.if_ is not None:
            schema = known.then if self._is_valid(known.if_, value, depth) else known.else_
            yield from self._within("", schema, value, depth)

    def _within(self, where: str, schema: object, value: object, depth: int) -> Iterator[str]:
        found = self.flaw(schema, value, depth + 1)
        if found is not None:
            yield f"{where} {found}" if where else found


def _entries(schema: Mapping[str, Any]) -> int:
    """The number of entries of a schema that are examined, without the schemas in it."""
    sizes = (len(value) for value in schema.values() if isinstance(value, list | dict))
    dependent = schema.get("dependentRequired")
    lists = dependent.values() if isinstance(dependent, dict) else ()
    return len(schema) + sum(sizes) + sum(len(names) for names in lists if isinstance(names, list))


def _size(value: object) -> int:
    """The number of entries of a value that a comparison examines."""
    match value:
        case list():
            return 1 + sum(map(_size, value))
        case dict():
            return 1 + sum(map(_size, chain(value, value.values())))
        case str():
            return 1 + len(value) // PATTERN_SIZE
        case _:
            return 1


def _of_any(known: _Keywords, value: object) -> Iterator[str]:
    if known.type is not None:
        kinds = [known.type] if isinstance(known.type, str) else known.type
        if not any(_is_a(value, kind) for kind in kinds):
            yield f"is not of type {' or '.join(kinds)}"
    if known.enum is not None and not any(_equals(value, each) for each in known.enum):
        yield "is not one of the values that are allowed"
    if known.const is not msgspec.UNSET and not _equals(value, known.const):
        yield "is not the value that is allowed"


def _of_number(known: _Keywords, value: int | float) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield "is no number of JSON"
        return
    if known.minimum is not None and value < known.minimum:
        yield f"is less than {known.minimum}"
    if known.maximum is not None and value > known.maximum:
        yield f"is more than {known.maximum}"
    if known.exclusive_minimum is not None and value <= known.exclusive_minimum:
        yield f"is not more than {known.exclusive_minimum}"
    if known.exclusive_maximum is not None and value >= known.exclusive_maximum:
        yield f"is not less than {known.exclusive_maximum}"
    if known.multiple_of is not None:
        if known.multiple_of <= 0:
            raise Unjudged("it has a 'multipleOf' that is not above 0")
        # By their decimal digits: 0.3 is a multiple of 0.1.
        if _exactly(value) % _exactly(known.multiple_of):
            yield f"is not a multiple of {known.multiple_of}"


def _exactly(number: int | float) -> Fraction:
    return Fraction(number if isinstance(number, int) else repr(number))


def _of_size(size: int, least: int | None, most: int | None, unit: str) -> Iterator[str]:
    if least is not None and size < least:
        yield f"has fewer than {least} {unit}"
    if most is not None and size > most:
        yield f"has more than {most} {unit}"


def _matches(pattern: str, text: str) -> bool:
    """Whether a pattern of ECMA 262 matches, in linear time. Raises Unjudged if RE2 might decide otherwise."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 16
    if len(pattern) <= MAX_PATTERN and _FOREIGN.search(pattern) is None and text.translate(_LINES).isprintable():
        try:
            return re2.compile(pattern, options).search(text) is not None
        except re2.error:
            pass
    raise Unjudged(f"it has the pattern {pattern[:100]!r}, which cannot be judged here")


def _is_a(value: object, kind: str) -> bool:
    if kind not in _IS_A:
        raise Unjudged(f"it has the type {kind[:100]!r}")
    return _IS_A[kind](value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_IS_A: Final[Mapping[str, Callable[[object], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: _is_number(value) and value % 1 == 0,  # type: ignore[operator]  # it is a number
    "number": _is_number,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _equals(one: Any, other: Any) -> bool:
    """JSON equality: 1 equals 1.0 and does not equal true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equals, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equals(member, other[name]) for name, member in one.items())
    return bool(one == other)
