"""Check entries of lists against the schema of the client's era, and repair three spellings that clients would refuse.

Clients that check what they read refuse a whole list for one entry of another shape. Members that the protocol does not
know pass. Three things are repaired, since another spelling says the same: an optional member that is null goes; the
schema of a tool's arguments, which are always an object, says so; for handshake clients, a property's schema that is
`true` is `{}`, and one that is `false` is `{"not": {}}`.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec import inspect as shapes

from mcproxy.protocol.json.bounds import Bounded
from mcproxy.protocol.jsonrpc import InvalidMessage, parse_object, raw
from mcproxy.protocol.methods import Kind

MAX_DIGITS: Final = 4300
"""Digits in a row in an entry: many JSON parsers refuse a whole message for a longer number."""
MAX_WHOLE: Final = 2**53
"""The largest number with a fraction or an exponent that is read as an integer: beyond it, many have no one value."""
MAX_FLAW: Final = 160
"""Characters of a flaw's description."""

_NULL: Final = b"null"
_AS_OBJECTS: Final = {b"true": raw({}), b"false": raw({"not": {}})}
"""JSON Schemas that are booleans, as objects (JSON Schema 2020-12, 4.3.2)."""
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
        flaw = self._flaw(entry)
        if flaw is not None:
            repaired = _repaired(self._shape, entry)
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
