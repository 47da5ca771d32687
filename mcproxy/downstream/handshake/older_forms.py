"""Forms of elicitation for clients of revisions before 2025-11-25: choices with titles, as those revisions spell them.

Multiple choices have no spelling there and pass unchanged: the client refuses the form, and the server is told.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.eras import V2025_11_25
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, Params, object_or_empty, raw

_SCHEMA: Final = "requestedSchema"
_PROPERTIES: Final = "properties"
_CHOICES: Final = "oneOf"


class _Choice(msgspec.Struct):
    value: str = msgspec.field(name="const")
    title: str


_choices = msgspec.json.Decoder(list[_Choice])


def in_older_form(version: str, question: Params) -> Params:
    """The params of a question in the spelling of `version`; the same object if nothing changes."""
    if version >= V2025_11_25 or _SCHEMA not in question:
        return question
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
