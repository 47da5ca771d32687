"""Forms for trying a tool, prompt or template, and its arguments from a filled-in form. Trusts nothing of its upstream.

A tool has a JSON Schema, a prompt a list of arguments, a resource template its variables (RFC 6570, levels 1 to 3).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

MAX_FIELDS: Final = 100
"""Parameters that the form shows; further ones are ignored."""


_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)([^{}]+)\}")
_RESERVED: Final = ":/?#[]@!$&'()*+,;="
_OPERATORS: Final = {
    "": ("", ",", False, ""),
    "+": ("", ",", False, _RESERVED),
    "#": ("#", ",", False, _RESERVED),
    ".": (".", ".", False, ""),
    "/": ("/", "/", False, ""),
    ";": (";", ";", True, ""),
    "?": ("?", "&", True, ""),
    "&": ("&", "&", True, ""),
}
"""By operator: what comes first, what between, whether names are written, and what is not escaped."""


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


def prompt_fields(listed: object) -> list[Field]:
    """The arguments of a prompt, the required ones first: each is a text."""
    found = [
        Field(str(one["name"]), "text", "string", one.get("required") is True, str(one.get("description") or ""))
        for one in (listed if isinstance(listed, list) else [])[:MAX_FIELDS]
        if isinstance(one, dict) and "name" in one
    ]
    return sorted(found, key=lambda field: not field.required)


def template_fields(template: str) -> list[Field]:
    """The variables of a URI template, in its order."""
    names = (name for match in _EXPRESSION.finditer(template) for name in _variables(match[2]))
    return [Field(name, "text", "string", False, "") for name in list(dict.fromkeys(names))[:MAX_FIELDS]]


def expanded(template: str, filled: Mapping[str, str]) -> str:
    """The URI that a template makes of these values; variables without a value are left out (RFC 6570, section 3)."""

    def expand(match: re.Match[str]) -> str:
        first, between, named, kept = _OPERATORS[match[1]]
        given = [(name, quote(filled[name], safe=kept)) for name in _variables(match[2]) if filled.get(name)]
        words = [f"{name}={value}" if named else value for name, value in given]
        return first + between.join(words) if words else ""

    return _EXPRESSION.sub(expand, template)


def _variables(text: str) -> list[str]:
    """The names in an expression, without their modifiers (`:3` and `*`, level 4)."""
    return [re.sub(r"(:\d+|\*)$", "", name) for name in text.split(",")]


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
