"""Forms from schemas, and arguments from forms."""

from __future__ import annotations

import pytest

from mcproxy.admin.entry_form import (
    MAX_FIELDS,
    InvalidInput,
    arguments,
    expanded,
    fields,
    prompt_fields,
    template_fields,
)

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


def test_a_prompt_s_arguments_are_texts_the_required_ones_first() -> None:
    listed = [{"name": "style"}, {"name": "code", "required": True, "description": "What to read."}, {"x": 1}, 7]
    assert [(field.name, field.control, field.required) for field in prompt_fields(listed)] == [
        ("code", "text", True),
        ("style", "text", False),
    ]
    assert prompt_fields("nonsense") == []
    assert len(prompt_fields([{"name": str(number)} for number in range(1000)])) == MAX_FIELDS


@pytest.mark.parametrize(
    ("template", "names", "uri"),
    [
        ("file:///{path}", ["path"], "file:///a%2Fb%20c"),
        ("file:///{+path}", ["path"], "file:///a/b%20c"),
        ("x:y{#path}", ["path"], "x:y#a/b%20c"),
        ("x:{path,n}", ["path", "n"], "x:a%2Fb%20c,1"),
        ("x:y{/n,none}{.n}", ["n", "none"], "x:y/1.1"),
        ("x:y{?n,none}{&path}{;n}", ["n", "none", "path"], "x:y?n=1&path=a%2Fb%20c;n=1"),
        ("x:{none}{?none}", ["none"], "x:"),
        ("x:{path*}{n:3}", ["path", "n"], "x:a%2Fb%20c1"),
        ("x:{", [], "x:{"),
    ],
)
def test_a_template_has_a_field_for_each_variable_and_is_expanded_by_rfc_6570(
    template: str, names: list[str], uri: str
) -> None:
    assert [field.name for field in template_fields(template)] == names
    assert expanded(template, {"path": "a/b c", "n": "1"}) == uri
