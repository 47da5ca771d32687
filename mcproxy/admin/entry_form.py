"""A form made of a tool's JSON Schema, and a tool's arguments from a filled-in form. Trusts no schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_FIELDS: Final = 100
"""Parameters that the form shows; further ones are ignored."""


class InvalidInput(Exception):
    """A value does not fit its field; the text names the field and the reason."""


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter. `control` is text, number, checkbox, select or json."""

    name: str
    control: str
    type: str
    required: bool
    description: str
    options: tuple[str, ...] = ()
    default: str = ""


def fields(schema: Mapping[str, Any]) -> list[Field]:
    """The parameters of a schema, the required ones first."""
    properties = schema.get("properties")
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    shapes = properties.items() if isinstance(properties, dict) else ()
    found = [_field(str(name), shape, required=name in names) for name, shape in list(shapes)[:MAX_FIELDS]]
    return sorted(found, key=lambda field: not field.required)


def arguments(schema: Mapping[str, Any], filled: Mapping[str, str]) -> dict[str, Any]:
    """The arguments, each converted to its field's type; empty optional fields are left out.

    Raises InvalidInput.
    """
    found: dict[str, Any] = {}
    for field in fields(schema):
        text = filled.get(field.name, "")
        if field.control == "checkbox":
            if text or field.required:
                found[field.name] = bool(text)
        elif text or field.required:
            found[field.name] = _value(field, text)
    return found


def _field(name: str, shape: object, *, required: bool) -> Field:
    shape = shape if isinstance(shape, dict) else {}
    kind = _type(shape)
    enum = shape.get("enum")
    options = tuple(json.dumps(option, ensure_ascii=False) for option in enum) if isinstance(enum, list) else ()
    control = {"string": "text", "integer": "number", "number": "number", "boolean": "checkbox"}.get(kind, "json")
    default = shape.get("default")
    shown = default if isinstance(default, str) and control == "text" else json.dumps(default, ensure_ascii=False)
    return Field(
        name=name,
        control="select" if options else control,
        type=kind,
        required=required,
        description=str(shape.get("description") or shape.get("title") or ""),
        options=options,
        default="" if default is None else str(shown),
    )


def _type(shape: Mapping[str, Any]) -> str:
    """The only type that a value may have beside null; "any" if there are several or none."""
    kind = shape.get("type")
    if isinstance(kind, str):
        return kind
    choices = shape.get("anyOf") or shape.get("oneOf")
    kinds = kind if isinstance(kind, list) else choices if isinstance(choices, list) else []
    named = {_type(one) if isinstance(one, dict) else str(one) for one in kinds} - {"null"}
    return named.pop() if len(named) == 1 else "any"


def _value(field: Field, text: str) -> Any:
    if field.control == "text":
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{field.name}: not a JSON {field.type}: {error}") from error
