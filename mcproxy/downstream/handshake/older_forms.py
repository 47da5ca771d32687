"""Questions for clients of revisions before 2025-11-25, as those spell them: choices with titles, messages to a model.

Multiple choices have no spelling there and pass unchanged: the client refuses the form, and the server is told.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.eras import V2025_11_25
from mcproxy.protocol.json.bounds import MAX_VALUES, Bounded, TooMany, check_values, parse_array
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, Params, object_or_empty, parse_text, raw

MAX_MESSAGES: Final = 10_000
"""Messages of a question, and blocks of one, that are looked at; a longer list passes as it is."""

_UNREADABLE: Final = (TooMany, msgspec.MsgspecError, RecursionError)
_ROLES: Final = frozenset({"user", "assistant"})

_MESSAGES: Final = "messages"
_SCHEMA: Final = "requestedSchema"
_PROPERTIES: Final = "properties"
_CHOICES: Final = "oneOf"


class _Choice(msgspec.Struct):
    value: str = msgspec.field(name="const")
    title: str


_choices = Bounded(list[_Choice])


def in_older_form(version: str, question: Params) -> Params:
    """The params of a question in the spelling of `version`; the same object if nothing changes."""
    if version >= V2025_11_25:
        return question
    if _MESSAGES in question:
        return _with_single_blocks(question)
    return _with_named_choices(question) if _SCHEMA in question else question


def _with_single_blocks(question: Params) -> Params:
    """Returns a question of sampling in which each message has one block of content, as those revisions have it."""
    try:
        check_values(question[_MESSAGES], MAX_VALUES)
        messages = parse_array(question[_MESSAGES], MAX_MESSAGES)
    except _UNREADABLE:
        return question
    spelled = [single for message in messages for single in _divided(message)]
    return question if spelled == messages else {**question, _MESSAGES: raw(spelled)}


def _divided(message: Raw) -> list[Raw]:
    """Returns a message for each of the blocks of one; the same where it has no list of them."""
    members = object_or_empty(message)
    role = parse_text(members.get("role", b""))
    try:
        blocks = parse_array(members.get("content", b""), MAX_MESSAGES)
    except _UNREADABLE:
        return [message]
    if role not in _ROLES or not blocks:
        return [message]
    return [raw({"role": role, "content": block}) for block in blocks]


def _with_named_choices(question: Params) -> Params:
    schema = object_or_empty(question[_SCHEMA])
    properties = object_or_empty(schema.get(_PROPERTIES, EMPTY_OBJECT))
    spelled = {name: _spelled(value) for name, value in properties.items()}
    if all(spelled[name] is value for name, value in properties.items()):
        return question
    return {**question, _SCHEMA: raw({**schema, _PROPERTIES: spelled})}


def _spelled(field: Raw) -> Raw:
    """`oneOf` with constants and titles (2025-11-25, TitledSingleSelectEnumSchema) as `enum` and `enumNames`."""
    members = object_or_empty(field)
    if _CHOICES not in members or "enum" in members:
        return field
    try:
        choices = _choices.decode(members[_CHOICES])
    except msgspec.MsgspecError:
        return field
    rest = {key: value for key, value in members.items() if key != _CHOICES}
    return raw({**rest, "enum": [each.value for each in choices], "enumNames": [each.title for each in choices]})
