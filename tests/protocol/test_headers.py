"""Mirrored headers: what is written is accepted, and what says something else than the body is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcproxy.protocol.headers import (
    HeaderMismatch,
    HeaderValues,
    InvalidAnnotation,
    check_header,
    check_name,
    check_parameter_headers,
    decode_value,
    encode_value,
    mirrored_parameters,
    parameter_headers,
    standard_headers,
    unannotated,
)
from mcproxy.protocol.jsonrpc import HEADER_MISMATCH, Params, parse_object, raw
from mcproxy.protocol.methods import METHODS
from tests.steps import functions_called

VERSION = "2026-07-28"
CALL: Params = {"name": raw("echo")}
FIELDS = {"MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/call", "Mcp-Name": "echo"}

SCHEMA = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
        "dry": {"type": "boolean", "x-mcp-header": "Dry"},
        "where": {"type": "object", "properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}}},
        "plain": {"type": "string", "default": {"x-mcp-header": "not an annotation"}},
    },
}


def came(lines: Iterable[tuple[str, str]]) -> HeaderValues:
    """Header lines as a request brings them."""
    read = list(lines)
    return lambda header: [value for name, value in read if name.lower() == header]


def check(lines: Iterable[tuple[str, str]], name: str = "echo") -> None:
    """Raises HeaderMismatch unless the lines mirror a call of the tool `name`."""
    fields = came(lines)
    check_header(fields, "MCP-Protocol-Version", VERSION)
    check_header(fields, "Mcp-Method", "tools/call")
    check_name(fields, name)


def mirrored(schema: Any = SCHEMA) -> Any:
    return mirrored_parameters(raw(schema))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("us-west1", "us-west1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
    ],
)
def test_the_examples_of_the_specification(text: str, value: str) -> None:
    assert encode_value(text) == value
    assert decode_value(value) == text


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_survives_a_header(text: str) -> None:
    value = encode_value(text)
    assert all(" " <= char <= "~" or char == "\t" for char in value)
    assert value == value.strip()
    assert decode_value(value) == text


@given(st.text("a~= \t\n\x1f\x7f\xa0é", max_size=4))
def test_what_is_printable_between_visible_ends_is_its_own_value(text: str) -> None:
    assert (encode_value(text) == text) is (re.fullmatch(r"[!-~]([ -~\t]*[!-~])?", text) is not None)


@pytest.mark.parametrize("value", ["=?base64?SGVsbG8?=", "=?base64?SGVs!!!bG8=?=", "=?base64?/w==?=", "ü", "a\x00b"])
def test_a_malformed_value_is_none(value: str) -> None:
    assert decode_value(value) is None


@pytest.mark.parametrize("value", ["SGVsbG8=", "=?base64?SGVsbG8=", "=?BASE64?SGVsbG8=?="])
def test_without_the_whole_sentinel_a_value_is_literal(value: str) -> None:
    assert decode_value(value) == value


def test_standard_headers_are_what_is_checked() -> None:
    assert standard_headers(VERSION, METHODS["tools/call"], CALL) == FIELDS
    for name in ("ünï", "=?base64?x?=", " "):
        params = {"name": raw(name)}
        fields = standard_headers(VERSION, METHODS["tools/call"], params)
        check(fields.items(), name)


def test_only_what_names_a_tool_a_prompt_or_a_resource_has_a_name_header() -> None:
    assert standard_headers(VERSION, METHODS["resources/read"], {"uri": raw("a://b")})["Mcp-Name"] == "a://b"
    assert standard_headers(VERSION, METHODS["prompts/get"], {"name": raw("p")})["Mcp-Name"] == "p"
    for ref in ({"type": "ref/prompt", "name": "p"}, "malformed"):
        assert "Mcp-Name" not in standard_headers(VERSION, METHODS["completion/complete"], {"ref": raw(ref)})
    assert "Mcp-Name" not in standard_headers(VERSION, METHODS["tools/list"], {"name": raw("x")})


def test_names_are_compared_without_case_and_values_without_white_space_around() -> None:
    fields = [("mcp-protocol-version", VERSION), ("MCP-METHOD", " tools/call\t"), ("mCp-NaMe", "  echo ")]
    check(fields)


@pytest.mark.parametrize("missing", FIELDS)
def test_a_missing_standard_header_is_a_mismatch(missing: str) -> None:
    fields = [(name, value) for name, value in FIELDS.items() if name != missing]
    with pytest.raises(HeaderMismatch, match=missing) as mismatch:
        check(fields)
    assert mismatch.value.error.code == HEADER_MISMATCH


@pytest.mark.parametrize(
    "wrong",
    [
        {"MCP-Protocol-Version": "2025-11-25"},
        {"Mcp-Method": "TOOLS/CALL"},
        {"Mcp-Name": "Echo"},
        {"Mcp-Name": "=?base64?ZWNobw?="},
    ],
)
def test_another_value_than_the_bodys_is_a_mismatch(wrong: dict[str, str]) -> None:
    with pytest.raises(HeaderMismatch):
        check({**FIELDS, **wrong}.items())


def test_a_header_given_twice_is_a_mismatch() -> None:
    with pytest.raises(HeaderMismatch, match="more than once"):
        check([*FIELDS.items(), ("mcp-name", "echo")])


def test_annotated_parameters_are_found_along_properties() -> None:
    assert {(p.header, p.path, p.type) for p in mirrored()} == {
        ("Mcp-Param-Region", ("region",), "string"),
        ("Mcp-Param-Count", ("count",), "integer"),
        ("Mcp-Param-Dry", ("dry",), "boolean"),
        ("Mcp-Param-Zone", ("where", "zone"), "string"),
    }


def test_a_property_that_is_called_like_the_annotation_is_none() -> None:
    assert mirrored({"properties": {"x-mcp-header": {"type": "string"}}}) == ()


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "x-mcp-header": ""}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": "a b"}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": "a\r\nb"}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": 1}}},
        {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}},
        {"properties": {"a": {"type": "object", "x-mcp-header": "A"}}},
        {"properties": {"a": {"type": ["string", "null"], "x-mcp-header": "A"}}},
        {"properties": {"a": {"x-mcp-header": "A"}}},
        {"type": "string", "x-mcp-header": "A"},
        {"properties": {k: {"type": "string", "x-mcp-header": h} for k, h in (("a", "Same"), ("b", "SAME"))}},
        {"properties": {"a": {"items": {"type": "string", "x-mcp-header": "A"}}}},
        {"properties": {"a": {"items": {"properties": {"b": {"type": "string", "x-mcp-header": "A"}}}}}},
        {"anyOf": [{"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}]},
        {"$defs": {"a": {"type": "string", "x-mcp-header": "A"}}},
        {"if": {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}},
    ],
)
def test_a_forbidden_annotation_makes_the_definition_invalid(schema: Any) -> None:
    with pytest.raises(InvalidAnnotation):
        mirrored(schema)


def test_a_deeply_nested_schema_is_walked_or_refused() -> None:
    schema: Any = {}
    for _ in range(400):
        schema = {"properties": {"a": schema}}
    assert mirrored(schema) == ()


def test_parameters_are_written_as_text_and_what_has_no_value_is_left_out() -> None:
    arguments = raw({"region": "Zürich", "count": -7, "dry": False, "where": {"zone": None}})
    assert parameter_headers(mirrored(), arguments) == {
        "Mcp-Param-Region": "=?base64?WsO8cmljaA==?=",
        "Mcp-Param-Count": "-7",
        "Mcp-Param-Dry": "false",
    }
    assert parameter_headers(mirrored(), None) == {}


@pytest.mark.parametrize(
    "arguments",
    [
        {"region": "=?base64?x?=", "count": 9007199254740991, "dry": True, "where": {"zone": "a\tb"}},
        {"count": 42.0},
        {"region": None, "where": 3},
        {"region": ["no", "text"]},
        {},
    ],
)
def test_parameter_headers_are_what_is_checked(arguments: Any) -> None:
    fields = parameter_headers(mirrored(), raw(arguments))
    check_parameter_headers(came(fields.items()), mirrored(), raw(arguments))


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"1e2", "100"),
        (b"1E+2", "100"),
        (b"-1.50e1", "-15"),
        (b"100e-2", "1"),
        (b"42.000", "42"),
        (b"0e0", "0"),
        (b"12345678901234567890123e0", "12345678901234567890123"),
        (b"1.5", "1.5"),
        (b"15e-1", "15e-1"),
        (b"1e999999999", "1e999999999"),
        (b"1e-999999999", "1e-999999999"),
    ],
)
def test_an_integer_is_mirrored_in_decimal_however_it_is_written(token: bytes, text: str) -> None:
    arguments = Raw(b'{"count":%b}' % token)
    fields = parameter_headers(mirrored(), arguments)
    assert fields == {"Mcp-Param-Count": text}
    check_parameter_headers(came(fields.items()), mirrored(), arguments)


def test_a_header_in_decimal_agrees_with_an_integer_that_has_an_exponent() -> None:
    check_parameter_headers(came([("mcp-param-count", "100")]), mirrored(), Raw(b'{"count":1e2}'))
    check_parameter_headers(came([("mcp-param-count", "100.0")]), mirrored(), Raw(b'{"count":1e2}'))


def test_integers_compare_as_numbers_and_strings_do_not() -> None:
    check_parameter_headers(came([("mcp-param-count", "42.0")]), mirrored(), raw({"count": 42}))
    with pytest.raises(HeaderMismatch):
        check_parameter_headers(came([("mcp-param-region", "42.0")]), mirrored(), raw({"region": "42"}))


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ([], {"region": "us"}),
        ([("Mcp-Param-Region", "eu")], {"region": "us"}),
        ([("Mcp-Param-Region", "us")], {}),
        ([("Mcp-Param-Region", "us")], {"region": None}),
        ([("Mcp-Param-Region", "=?base64?dXM?=")], {"region": "us"}),
        ([("Mcp-Param-Region", "us"), ("mcp-param-region", "us")], {"region": "us"}),
        ([("Mcp-Param-Count", "43")], {"count": 42}),
        ([("Mcp-Param-Dry", "True")], {"dry": True}),
    ],
)
def test_a_parameter_header_that_is_not_the_argument_is_a_mismatch(fields: Any, arguments: Any) -> None:
    with pytest.raises(HeaderMismatch):
        check_parameter_headers(came(fields), mirrored(), raw(arguments))


def test_r78_arguments_are_read_once_for_all_parameters() -> None:
    names = [f"p{number}" for number in range(50)]
    own = {name: {"type": "string", "x-mcp-header": name} for name in names}
    inner = {"type": "object", "properties": {name: {"type": "string", "x-mcp-header": f"in-{name}"} for name in names}}
    parameters = mirrored({"properties": {**own, "where": inner}})
    arguments = raw({**dict.fromkeys(names, "x"), "where": dict.fromkeys(names, "y")})
    headers = parameter_headers(parameters, arguments)
    assert list(headers.values()).count("y") == len(headers) / 2 == 50
    written = functions_called(lambda: parameter_headers(parameters, arguments), of=parse_object)
    fields = came(headers.items())
    checked = functions_called(lambda: check_parameter_headers(fields, parameters, arguments), of=parse_object)
    assert (written, checked) == (2, 2)


def test_headers_of_parameters_that_no_schema_names_are_ignored() -> None:
    check_parameter_headers(came([("Mcp-Param-Other", "x")]), mirrored(), raw({}))


def test_a_schema_without_annotations_has_all_else() -> None:
    named = {"type": "object", "properties": {"x-mcp-header": {"type": "string", "x-mcp-header": "A"}}}
    within = {"items": {"anyOf": [{"type": "string", "x-mcp-header": "B"}]}, "default": {"x-mcp-header": "data"}}
    schema = {**named, "x-mcp-header": 7, "$defs": {"d": within}, "big": 123456789012345678901234567890}
    assert msgspec.json.decode(unannotated(raw(schema))) == {
        "type": "object",
        "properties": {"x-mcp-header": {"type": "string"}},
        "$defs": {"d": {"items": {"anyOf": [{"type": "string"}]}, "default": {"x-mcp-header": "data"}}},
        "big": 123456789012345678901234567890,
    }


def test_a_schema_that_cannot_be_read_stays_as_it_is() -> None:
    assert unannotated(Raw(b"[" * 5000)) == Raw(b"[" * 5000)
