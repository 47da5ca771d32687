"""Forms from schemas, and arguments from forms."""

from __future__ import annotations

import pytest

from mcproxy.admin.entry_form import MAX_FIELDS, InvalidInput, arguments, fields

SCHEMA = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "description": "What to say.", "default": "hello"},
        "count": {"type": "integer"},
        "loud": {"type": "boolean"},
        "color": {"enum": ["red", "blue", 3]},
        "deep": {"type": "object"},
        "since": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "who": {"type": "string"},
    },
    "required": ["who"],
}


def test_each_parameter_has_the_control_of_its_type_and_the_required_come_first() -> None:
    assert [(field.name, field.control) for field in fields(SCHEMA)] == [
        ("who", "text"),
        ("note", "text"),
        ("count", "number"),
        ("loud", "checkbox"),
        ("color", "select"),
        ("deep", "json"),
        ("since", "text"),
    ]
    note = fields(SCHEMA)[1]
    assert (note.description, note.default) == ("What to say.", "hello")
    assert fields(SCHEMA)[4].options == ('"red"', '"blue"', "3")


def test_what_is_filled_in_becomes_arguments_of_the_right_types() -> None:
    filled = {"who": "Ada", "note": "1", "count": "3", "loud": "true", "color": "3", "deep": '{"a": [1]}', "since": ""}
    assert arguments(SCHEMA, filled) == {
        "who": "Ada",
        "note": "1",
        "count": 3,
        "loud": True,
        "color": 3,
        "deep": {"a": [1]},
    }


def test_an_empty_required_text_is_an_empty_text() -> None:
    assert arguments(SCHEMA, {}) == {"who": ""}


def test_what_is_no_json_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="deep: not a JSON object"):
        arguments(SCHEMA, {"who": "x", "deep": "{"})


@pytest.mark.parametrize(
    "schema",
    [{}, {"properties": 3}, {"properties": {"a": 3}, "required": "a"}, {"properties": {"a": {"type": 7, "enum": {}}}}],
)
def test_a_schema_that_is_none_breaks_nothing(schema: dict[str, object]) -> None:
    assert all(field.control == "json" for field in fields(schema))


def test_a_schema_without_end_has_a_form_with_one() -> None:
    assert len(fields({"properties": {str(number): {} for number in range(10_000)}})) == MAX_FIELDS
