"""Check entries of lists against the schema of the client's era, and repair what clients would refuse.

Clients that check what they read refuse a whole list for one entry of another shape. Members that the protocol does not
know pass. Another spelling may say the same: an optional member that is null goes; the schema of a tool's arguments,
which are always an object, says so; for handshake clients, a property's schema that is `true` is `{}`, and one that is
`false` is `{"not": {}}`; a tool without a schema, or with an empty one, has an open one; `OBJECT` is `object`.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec import inspect as shapes

from mcproxy.protocol.json.bounds import Bounded, parse_value
from mcproxy.protocol.jsonrpc import InvalidMessage, parse_object, raw
from mcproxy.protocol.methods import Kind

MAX_DIGITS: Final = 4300
"""Digits in a row in an entry: many JSON parsers refuse a whole message for a longer number."""
MAX_WHOLE: Final = 2**53
"""The largest number with a fraction or an exponent that is read as an integer: beyond it, many have no one value."""
MAX_REPAIRED: Final = 256 * 1024
"""Bytes of an entry that is repaired; a larger one with a flaw is left out, as repairing takes copies of it."""
MAX_FLAW: Final = 160
"""Characters of a flaw's description."""

_NULL: Final = b"null"
_AS_OBJECTS: Final = {b"true": raw({}), b"false": raw({"not": {}})}
"""JSON Schemas that are booleans, as objects (JSON Schema 2020-12, 4.3.2)."""
_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_CAPITALS: Final = re.compile(rb'"type"\s*:\s*\[?\s*"[A-Z]')
_VALUES: Final = frozenset({"default", "const", "enum", "examples", "example"})
"""Keywords of JSON Schema whose values are no schemas."""
_INPUT_SCHEMA: Final = "inputSchema"
_SCHEMA_NAMES: Final = (_INPUT_SCHEMA, "input_schema", "parameters")
"""The first is the protocol's; the others are those of APIs of models."""
_OPEN: Final = frozenset({b"null", b"true", b"[]"})
"""What stands in place of a schema that says nothing."""
_NONE_REQUIRED: Final = frozenset({b"true", b"false", b"{}"})
"""What stands in place of a list of required properties: draft 3 had it in each property."""
_LONG_NUMBER: Final = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

_items = Bounded(list[Raw])

OptionalText = str | UnsetType
OptionalBoolean = bool | UnsetType


class AnyObject(msgspec.Struct):
    """An object with any members."""


class SchemaShape(msgspec.Struct):
    """A JSON Schema, as far as the protocol says what is in it."""

    dialect: OptionalText = msgspec.field(default=UNSET, name="$schema")


class ObjectSchemaShape(SchemaShape, kw_only=True):
    """A JSON Schema of objects.

    2026-07-28 says nothing of `properties` and `required`, but "valid JSON Schema", of which they are a part (tools).
    """

    type: Literal["object"]
    properties: dict[str, AnyObject | bool] | UnsetType = UNSET
    required: list[str] | UnsetType = UNSET


class ArgumentsShape(ObjectSchemaShape):
    """That of a tool's arguments."""


class IconShape(msgspec.Struct, rename="camel", kw_only=True):
    """An icon of an entry (schema, Icon)."""

    src: str
    mime_type: OptionalText = UNSET
    sizes: list[str] | UnsetType = UNSET
    theme: Literal["light", "dark"] | UnsetType = UNSET


class AnnotationsShape(msgspec.Struct, rename="camel", kw_only=True):
    """Annotations of a resource or a content block (schema, Annotations)."""

    audience: list[Literal["user", "assistant"]] | UnsetType = UNSET
    priority: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    last_modified: OptionalText = UNSET


class ToolAnnotationsShape(msgspec.Struct, rename="camel", kw_only=True):
    """Hints about a tool's behaviour (schema, ToolAnnotations)."""

    title: OptionalText = UNSET
    read_only_hint: OptionalBoolean = UNSET
    destructive_hint: OptionalBoolean = UNSET
    idempotent_hint: OptionalBoolean = UNSET
    open_world_hint: OptionalBoolean = UNSET


class ExecutionShape(msgspec.Struct, rename="camel", kw_only=True):
    """How a tool may be called as a task (2025-11-25, schema, ToolExecution)."""

    task_support: Literal["forbidden", "optional", "required"] | UnsetType = UNSET


class ArgumentShape(msgspec.Struct):
    """An argument of a prompt (schema, PromptArgument)."""

    name: str
    title: OptionalText = UNSET
    description: OptionalText = UNSET
    required: OptionalBoolean = UNSET


class EntryShape(msgspec.Struct, rename="camel", kw_only=True):
    """The members of entries of all lists."""

    name: str
    title: OptionalText = UNSET
    description: OptionalText = UNSET
    icons: list[IconShape] | UnsetType = UNSET
    meta: AnyObject | UnsetType = msgspec.field(default=UNSET, name="_meta")


class AnyToolShape(EntryShape, rename="camel", kw_only=True):
    """The members of tools in both eras."""

    annotations: ToolAnnotationsShape | UnsetType = UNSET
    execution: ExecutionShape | UnsetType = UNSET
    """Of 2025-11-25 alone; SDKs read the lists of all revisions by one type, which has it."""


class HandshakeSchemaShape(SchemaShape, kw_only=True):
    """2025-11-25, in which the schemas of properties are objects."""

    type: Literal["object"]
    properties: dict[str, AnyObject] | UnsetType = UNSET
    required: list[str] | UnsetType = UNSET


class ToolShape(AnyToolShape, rename="camel", kw_only=True):
    """A tool of 2026-07-28 (schema, Tool)."""

    input_schema: ArgumentsShape
    output_schema: SchemaShape | UnsetType = UNSET


class HandshakeArgumentsShape(HandshakeSchemaShape):
    """That of a tool's arguments."""


class HandshakeToolShape(AnyToolShape, rename="camel", kw_only=True):
    """2025-11-25, in which every schema of a tool is one of objects."""

    input_schema: HandshakeArgumentsShape
    output_schema: HandshakeSchemaShape | UnsetType = UNSET


class PromptShape(EntryShape):
    """A prompt (schema, Prompt)."""

    arguments: list[ArgumentShape] | UnsetType = UNSET


class TemplateShape(EntryShape, rename="camel", kw_only=True):
    """A resource template (schema, ResourceTemplate)."""

    uri_template: str
    mime_type: OptionalText = UNSET
    annotations: AnnotationsShape | UnsetType = UNSET


class ResourceShape(EntryShape, rename="camel", kw_only=True):
    """A resource (schema, Resource)."""

    uri: str
    mime_type: OptionalText = UNSET
    size: int | float | UnsetType = UNSET
    annotations: AnnotationsShape | UnsetType = UNSET

    def __post_init__(self) -> None:
        if isinstance(self.size, float) and not (self.size.is_integer() and abs(self.size) <= MAX_WHOLE):
            raise ValueError("Expected `int` as its size")
        if _URI.match(self.uri) is None:
            raise ValueError("Expected a scheme in its uri")


_OF_ARGUMENTS: Final = (ArgumentsShape, HandshakeArgumentsShape)


class EntryRule:
    """The shape of the entries of one list."""

    def __init__(self, shape: type[EntryShape]) -> None:
        self._decoder = Bounded(shape)
        self._of = shape

    @cached_property
    def _shape(self) -> shapes.Type:
        """Worked out for the first entry that has to be repaired: few servers have one."""
        return shapes.type_info(self._of)

    def checked(self, entry: Raw) -> tuple[Raw, str | None]:
        """The entry as clients can read it, and a phrase with what they cannot read in it; None if there is nothing."""
        if len(entry) > MAX_REPAIRED:
            return entry, self._flaw(entry)
        if _CAPITALS.search(bytes(entry)) is not None and issubclass(self._of, AnyToolShape):
            entry = _with_types_in_lower_case(entry)
        flaw = self._flaw(entry)
        if flaw is None:
            return entry, None
        repaired = _repaired(self._shape, entry)
        if issubclass(self._of, AnyToolShape) and self._flaw(repaired) is not None:
            repaired = _with_readable_arguments(repaired)
        if repaired != entry and self._flaw(repaired) is None:
            return repaired, None
        return entry, flaw

    def _flaw(self, entry: Raw) -> str | None:
        if len(entry) > MAX_DIGITS and _LONG_NUMBER.search(bytes(entry)) is not None:
            return f"clients cannot read it: a number of more than {MAX_DIGITS} digits"
        try:
            self._decoder.decode(entry)
        except (msgspec.MsgspecError, RecursionError) as error:
            return f"clients cannot read it: {error}"[:MAX_FLAW]
        return None


ENTRIES: Final = {
    Kind.TOOLS: EntryRule(ToolShape),
    Kind.PROMPTS: EntryRule(PromptShape),
    Kind.RESOURCES: EntryRule(ResourceShape),
    Kind.TEMPLATES: EntryRule(TemplateShape),
}
"""What the newest revision has of each list; skills are an extension's, which says itself what makes one invalid."""
HANDSHAKE_TOOLS: Final = EntryRule(HandshakeToolShape)


def _repaired(shape: Any, value: Raw) -> Raw:
    """A JSON value with the repairs that its shape has a place for."""
    match shape:
        case shapes.UnionType(types=types):
            inner = [each for each in types if isinstance(each, shapes.StructType | shapes.ListType | shapes.DictType)]
            return _repaired(inner[0], value) if inner else value
        case shapes.ListType(item_type=shapes.StructType() as item):
            try:
                return raw([_repaired(item, each) for each in _items.decode(value)])
            except (msgspec.MsgspecError, RecursionError):
                return value
        case shapes.DictType(value_type=shapes.StructType()):
            try:
                return raw({key: _AS_OBJECTS.get(bytes(each), each) for key, each in parse_object(value).items()})
            except InvalidMessage:
                return value
        case shapes.StructType(fields=fields) if fields:
            known = {field.encode_name: field for field in fields}
            try:
                members = parse_object(value)
            except InvalidMessage:
                return value
            kept = {
                key: _repaired(known[key].type, member) if key in known else member
                for key, member in members.items()
                if key not in known or known[key].required or bytes(member) != _NULL
            }
            if shape.cls in _OF_ARGUMENTS:
                kept.setdefault("type", raw("object"))
            return raw(kept)
        case _:
            return value


def _with_readable_arguments(entry: Raw) -> Raw:
    """A tool with a schema of its arguments that clients can read, if it has only one reading.

    https://github.com/mastra-ai/mastra/issues/21859, https://github.com/IvanMurzak/Unity-MCP/issues/440
    """
    try:
        tool = parse_object(entry)
    except InvalidMessage:
        return entry
    said = next((tool[name] for name in _SCHEMA_NAMES if name in tool), Raw(b"null"))
    schema = Raw(b'{"type":"object"}') if bytes(said) in _OPEN else _readable_arguments(said)
    return raw({**tool, _INPUT_SCHEMA: schema})


def _readable_arguments(schema: Raw) -> Raw:
    """A schema whose `properties` and `required` are empty as PHP writes it, or are those of a draft of long ago."""
    try:
        members = parse_object(schema)
    except InvalidMessage:
        return schema
    if bytes(members.get("properties", b"")) == b"[]":
        del members["properties"]
    if bytes(members.get("required", b"")) in _NONE_REQUIRED:
        del members["required"]
    return raw(members)


def _with_types_in_lower_case(entry: Raw) -> Raw:
    """Types that are written as Google's APIs write them: `OBJECT`, `STRING`."""
    try:
        return raw(_lowered(parse_value(entry)))
    except (msgspec.MsgspecError, RecursionError):
        return entry


def _lowered(value: object) -> object:
    match value:
        case dict():
            return {
                key: _lowered_type(member) if key == "type" else member if key in _VALUES else _lowered(member)
                for key, member in value.items()
            }
        case list():
            return [_lowered(item) for item in value]
        case _:
            return value


def _lowered_type(said: object) -> object:
    match said:
        case str():
            return said.lower() if said.lower() in _TYPES else said
        case list():
            return [_lowered_type(item) for item in said]
        case _:
            return _lowered(said)
