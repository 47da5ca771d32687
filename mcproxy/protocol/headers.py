"""The HTTP headers that mirror a stateless request (2026-07-28, streamable-http, "Request Metadata").

Writes them for a request, and checks those of a request against its body, which stays the source of truth.
Header names are compared without case; values are not.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.json.bounds import parse_value
from mcproxy.protocol.jsonrpc import HEADER_MISMATCH, ErrorObject, InvalidMessage, Params, parse_object, parse_text, raw
from mcproxy.protocol.methods import Method

VERSION: Final = "MCP-Protocol-Version"
METHOD: Final = "Mcp-Method"
NAME: Final = "Mcp-Name"
PARAM_PREFIX: Final = "Mcp-Param-"
ANNOTATION: Final = "x-mcp-header"
"""The keyword of a tool's `inputSchema` that names the header of one parameter."""

MAX_DIGITS: Final = 64
"""Digits up to which an integer with an exponent is written out: `1e999999999` would take a gigabyte."""

HeaderValues = Callable[[str], Sequence[str]]
"""The values of a header by its name in lower case, one for each time that it came."""

_FIELD_VALUE = re.compile(r"[\x20-\x7e\t]*")
_SAFE_VALUE = re.compile(r"[!-~]([ -~\t]*[!-~])?")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SENTINEL = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)
_SENTINEL_START: Final = "=?base64?"
_DECIMAL = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_WHOLE = re.compile(r"-?\d+(\.0+)?", re.ASCII)
_PRIMITIVES = frozenset({"string", "integer", "boolean"})
_DATA_KEYWORDS = frozenset({"const", "default", "enum", "examples"})


class HeaderMismatch(Exception):
    """A header that is missing or malformed, or contradicts the body."""

    @property
    def error(self) -> ErrorObject:
        """The error that the client gets in place of a result."""
        return ErrorObject(HEADER_MISMATCH, f"Header mismatch: {self}")


class InvalidAnnotation(Exception):
    """An `x-mcp-header` that the specification forbids; it makes the tool's whole definition invalid."""


class MirroredParameter(msgspec.Struct, frozen=True):
    """A parameter of a tool that has a header of its own."""

    header: str
    path: tuple[str, ...]
    """The `properties` keys that lead to it."""
    type: str


def encode_value(text: str) -> str:
    """`text` as a header value: unchanged, or in Base64 if it would not arrive unchanged ("Value Encoding")."""
    if text.isascii() and text.isprintable() and text.strip() == text != "" and text[0] != "=":
        return text  # as most are
    if _SAFE_VALUE.fullmatch(text) and not _SENTINEL.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def decode_value(value: str) -> str | None:
    """The text that `value` stands for; None if it is not valid."""
    if value.isascii() and value.isprintable() and not value.startswith(_SENTINEL_START):
        return value  # as most are
    if not _FIELD_VALUE.fullmatch(value):
        return None
    encoded = _SENTINEL.fullmatch(value)
    if encoded is None:
        return value
    try:
        return base64.b64decode(encoded[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def standard_headers(version: str, row: Method, params: Params) -> dict[str, str]:
    """The headers that every request carries."""
    return {VERSION: version, METHOD: row.name, **subject_headers(row, params)}


def subject_headers(row: Method, params: Params) -> dict[str, str]:
    """The header that names the request's subject, if it has one: often the only one that differs."""
    name = mirrored_name(row, params)
    return {} if name is None else {NAME: encode_value(name)}


def check_header(fields: HeaderValues, header: str, expected: str) -> None:
    """Raises HeaderMismatch where VERSION or METHOD is not what `standard_headers` says ("Server Validation")."""
    if (said := _given(fields, header)) != expected:
        raise _mismatch(header, said, expected)


def check_name(fields: HeaderValues, name: str | None) -> None:
    """The same for NAME, which is encoded. `name` is the request's `mirrored_name`; without one any value passes."""
    said = _given(fields, NAME)
    if name is not None and (said is None or (said := _decoded(NAME, said)) != name):
        raise _mismatch(NAME, said, name)


def mirrored_parameters(input_schema: Raw) -> tuple[MirroredParameter, ...]:
    """The parameters that a tool wants in headers. Raises InvalidAnnotation ("Schema Extension")."""
    if not may_be_annotated(bytes(input_schema)):
        return ()
    try:
        schema = parse_value(input_schema)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidAnnotation(f"the inputSchema is not readable: {error}") from error
    found = [_mirrored(position, path) for position, path in _positions(schema) if ANNOTATION in position]
    names = [parameter.header.lower() for parameter in found]
    if len(set(names)) < len(names):
        raise InvalidAnnotation(f"two parameters share one {ANNOTATION}")
    return tuple(found)


def unannotated(input_schema: Raw) -> Raw:
    """The schema without its annotations; the very same if it cannot be read."""
    try:
        schema = parse_value(input_schema)
    except (msgspec.MsgspecError, RecursionError):
        return input_schema
    for position, _ in list(_positions(schema)):
        position.pop(ANNOTATION, None)
    return raw(schema)


def parameter_headers(mirrored: Iterable[MirroredParameter], arguments: Raw | None) -> dict[str, str]:
    """The headers of one tool call's arguments; a parameter without a value has none."""
    read = _ArgumentObject(arguments)
    values = {parameter.header: read.text_at(parameter.path) for parameter in mirrored}
    return {header: encode_value(text) for header, text in values.items() if text is not None}


def check_parameter_headers(fields: HeaderValues, mirrored: Iterable[MirroredParameter], arguments: Raw | None) -> None:
    """Raises HeaderMismatch where a header is not what `parameter_headers` says; integers compare as numbers."""
    read = _ArgumentObject(arguments)
    for parameter in mirrored:
        value = _given(fields, parameter.header)
        text = None if value is None else _decoded(parameter.header, value)
        expected = read.text_at(parameter.path)
        if text != expected and not (parameter.type == "integer" and _equal_numbers(text, expected)):
            raise _mismatch(parameter.header, text, expected)


def may_be_annotated(schema: bytes) -> bool:
    """False if nothing in a schema, or in several, can be an annotation."""
    # Most schemas are not; reading each for every call would cost more than the call. JSON may escape any letter.
    return ANNOTATION.encode() in schema or b"\\u00" in schema


def mirrored_name(row: Method, params: Params) -> str | None:
    """The subject of a request, if its method mirrors it in a header."""
    if row.subject_key is None or not row.names_subject:
        return None
    return parse_text(params.get(row.subject_key, b""))


def _given(fields: HeaderValues, header: str) -> str | None:
    """The value of a header. A repeated one is refused, as others may read the other value."""
    values = fields(header.lower())
    if len(values) == 1:
        return values[0].strip(" \t")
    if values:
        raise HeaderMismatch(f"{header} is given more than once")
    return None


def _decoded(header: str, value: str) -> str:
    text = decode_value(value)
    if text is None:
        raise HeaderMismatch(f"the value of {header} is malformed")
    return text


def _mismatch(header: str, given: str | None, expected: str | None) -> HeaderMismatch:
    if given is None:
        return HeaderMismatch(f"{header} is missing")
    if expected is None:
        return HeaderMismatch(f"{header} is given, and the body has no value for it")
    return HeaderMismatch(f"{header} does not match the body")


def _equal_numbers(given: str | None, expected: str | None) -> bool:
    if given is None or expected is None:
        return False
    return all(_DECIMAL.fullmatch(text) for text in (given, expected)) and Decimal(given) == Decimal(expected)


class _ArgumentObject:
    """An object among the arguments: parsed once, with those inside it, for all parameters."""

    __slots__ = ("_inner", "_members")

    def __init__(self, value: Raw | None) -> None:
        """A value that is no object has no members."""
        try:
            self._members: Params = {} if value is None else parse_object(value)
        except InvalidMessage:
            self._members = {}
        self._inner: dict[str, _ArgumentObject] = {}

    def text_at(self, path: tuple[str, ...]) -> str | None:
        """The argument at `path` as text. None where there is none, or it is no string, number or boolean."""
        holder = self
        for key in path[:-1]:
            holder = holder._inner.get(key) or holder._entered(key)
        value = holder._members.get(path[-1])
        if value is None:
            return None
        token = bytes(value).decode()
        if token.startswith('"'):
            return parse_text(value)
        return None if token[0] in "{[n" else _as_integer(token)

    def _entered(self, key: str) -> _ArgumentObject:
        inner = self._inner[key] = _ArgumentObject(self._members.get(key))
        return inner


def _as_integer(token: str) -> str:
    """The decimal digits of a JSON number that is an integer, however it is written: `1e2` is 100, `42.0` is 42.

    Other tokens, and integers of more than MAX_DIGITS digits with an exponent, stay as they are ("Value Encoding").
    """
    if _WHOLE.fullmatch(token):
        return token.partition(".")[0]
    if "." not in token and "e" not in token and "E" not in token:
        return token
    try:
        number = Decimal(token)
    except InvalidOperation:
        return token  # `true` and `false`
    if not -MAX_DIGITS <= number.adjusted() <= MAX_DIGITS or number != number.to_integral_value():
        return token
    return f"{number.to_integral_value():f}"


def _mirrored(position: Mapping[str, object], path: tuple[str, ...] | None) -> MirroredParameter:
    name, kind = position[ANNOTATION], position.get("type")
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise InvalidAnnotation(f"{ANNOTATION} must be a header name")
    if not path:
        raise InvalidAnnotation(f"{ANNOTATION} {name!r} is not on a plain property")
    if not isinstance(kind, str) or kind not in _PRIMITIVES:
        raise InvalidAnnotation(f"{ANNOTATION} {name!r} must be on a string, an integer or a boolean")
    return MirroredParameter(PARAM_PREFIX + name, path, kind)


def _positions(root: object) -> Iterator[tuple[dict[str, object], tuple[str, ...] | None]]:
    """Each schema within a schema, with the property path to it; None where it is not statically reachable."""
    pending: list[tuple[object, tuple[str, ...] | None]] = [(root, ())]
    while pending:
        node, path = pending.pop()
        if isinstance(node, list):
            pending.extend((member, None) for member in node)
        if not isinstance(node, dict):
            continue
        yield node, path
        for keyword, value in node.items():
            if keyword == "properties" and isinstance(value, dict):
                pending.extend((inner, None if path is None else (*path, name)) for name, inner in value.items())
            elif keyword not in _DATA_KEYWORDS:
                pending.append((value, None))
