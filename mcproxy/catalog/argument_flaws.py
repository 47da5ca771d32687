"""Say what is plainly wrong with a tool call's arguments, by the first level of the tool's input schema.

Finds no flaw in valid arguments (JSON Schema 2020-12), and not every flaw in others: the server judges deeper levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcproxy.catalog.search.signatures import first_words
from mcproxy.protocol.json.bounds import Bounded
from mcproxy.protocol.jsonrpc import Params

MAX_FLAWS: Final = 10
"""Flaws that are reported at once."""
MAX_SHOWN: Final = 80
"""Characters of a parameter's name that are shown."""


class _InputSchema(msgspec.Struct):
    properties: dict[str, Any] = {}
    required: list[Any] = []
    patterns: dict[str, Any] = msgspec.field(default={}, name="patternProperties")
    others: Any = msgspec.field(default=True, name="additionalProperties")


_schema = Bounded(_InputSchema)


def flaws(schema: Raw, arguments: Params) -> list[str]:
    """A phrase for each flaw; none if the schema cannot be read."""
    try:
        known = _schema.decode(schema)
    except (msgspec.MsgspecError, RecursionError):
        return []
    found = chain(_missing(known, arguments), _unknown(known, arguments), _mistyped(known, arguments))
    return list(islice(found, MAX_FLAWS))


def _missing(known: _InputSchema, arguments: Params) -> Iterator[str]:
    for name in known.required:
        if isinstance(name, str) and name not in arguments:
            yield f"{_named(name)} is required"


def _unknown(known: _InputSchema, arguments: Params) -> Iterator[str]:
    if known.others is not False or known.patterns:
        return
    for name in arguments:
        if name not in known.properties:
            yield f"{_named(name)} is not a parameter"


def _mistyped(known: _InputSchema, arguments: Params) -> Iterator[str]:
    for name, value in arguments.items():
        schema = known.properties.get(name)
        kinds = schema.get("type") if isinstance(schema, dict) else None
        wanted = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(wanted, list) or not all(isinstance(kind, str) and kind in _HAS_TYPE for kind in wanted):
            continue
        if not any(_HAS_TYPE[kind](value) for kind in wanted):
            yield f"{_named(name)} must be of type {' or '.join(dict.fromkeys(wanted))}"


def _named(name: str) -> str:
    return repr(first_words(name, MAX_SHOWN))


def _is_integer(value: Raw) -> bool:
    if bytes(memoryview(value)[:1]) not in _DIGITS:
        return False
    try:
        number = msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return True  # a number that is too large to be read
    if isinstance(number, float):
        return number.is_integer()
    return isinstance(number, int)


_DIGITS: Final = {bytes([byte]) for byte in b"-0123456789"}

_HAS_TYPE: Final[Mapping[str, Callable[[Raw], bool]]] = {
    "string": lambda value: bytes(memoryview(value)[:1]) == b'"',
    "object": lambda value: bytes(memoryview(value)[:1]) == b"{",
    "array": lambda value: bytes(memoryview(value)[:1]) == b"[",
    "boolean": lambda value: bytes(value) in (b"true", b"false"),
    "null": lambda value: bytes(value) == b"null",
    "number": lambda value: bytes(value)[:1] in _DIGITS,
    "integer": _is_integer,
}
"""Tests whether a JSON value has a type, by JSON Schema's name of the type."""
