"""The twin of `mcproxy.catalog.json_schema`: it says what jsonschema says, or that it cannot say."""

from __future__ import annotations

from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mcproxy.catalog.json_schema import MAX_PATTERN, MAX_STEPS, STEP_SIZE, Unjudged, pointed_to, value_flaw

NAMES = st.sampled_from(["a", "b", "ab"])
SMALL = st.integers(0, 3)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 4) | st.sampled_from([0.5, 1.0, 2.5]) | NAMES | st.just(""),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
PATTERNS = st.sampled_from(["^a", "b$", "^[ab]+$", r"^\w$", "a|b"])
ROOT = {"$defs": {"text": {"type": "string"}, "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}


def _keywords(schema: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    schemas = st.lists(schema, min_size=1, max_size=3)
    by_name = st.dictionaries(NAMES, schema, max_size=2)
    names = st.lists(NAMES, unique=True, max_size=2)
    members: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), SMALL),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), st.integers(-2, 4)),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), schemas),
        **dict.fromkeys(("properties", "dependentSchemas"), by_name),
        **dict.fromkeys(("not", "if", "then", "else", "items", "contains", "additionalProperties"), schema),
        **dict.fromkeys(("minContains", "maxContains"), SMALL),
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "multipleOf": st.integers(1, 3),
        "pattern": PATTERNS,
        "uniqueItems": st.booleans(),
        "patternProperties": st.dictionaries(PATTERNS, schema, max_size=2),
        "propertyNames": schema,
        "required": names,
        "dependentRequired": st.dictionaries(NAMES, names, max_size=2),
        "$ref": st.sampled_from(["#/$defs/text", "#/$defs/tree"]),
        "title": st.just("an annotation"),
        "format": st.just("uri"),
    }
    some = st.lists(st.sampled_from(sorted(members)), max_size=3, unique=True)
    return some.flatmap(lambda keys: st.fixed_dictionaries({key: members[key] for key in keys}))


SCHEMAS: st.SearchStrategy[Any] = st.recursive(st.booleans() | st.just({}), _keywords, max_leaves=6)


@given(SCHEMAS, VALUES)
def test_it_says_what_jsonschema_says(schema: Any, value: object) -> None:
    whole = {"allOf": [schema], **ROOT}
    try:
        found = value_flaw(schema, value, whole)
    except Unjudged as why:
        event(f"not judged: {why}")
        return
    event("valid" if found is None else "invalid")
    assert (found is None) == jsonschema.Draft202012Validator(whole).is_valid(value), found


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"multipleOf": 0.1}, 0.3),
        ({"type": "integer"}, 2.0),
        ({"const": {"a": [1, {}]}}, {"a": [1.0, {}]}),
        ({"pattern": r"^\d+$"}, "12"),
        ({"pattern": "^a.b$"}, "a\tb"),
        ({"maxLength": 1}, "\U0001f600"),
        ({"minimum": 3, "minLength": 2}, [1]),
    ],
)
def test_what_is_valid_is_said_to_be(schema: object, value: object) -> None:
    assert value_flaw(schema, value, {}) is None


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        ({"const": 1}, True, "is not the value that is allowed"),
        ({"pattern": "^a$"}, "a\n", "does not match '^a$'"),
        ({"pattern": r"^\d+$"}, "١", r"does not match '^\\d+$'"),
        ({"properties": {"a": {"items": {"maximum": 3}}}}, {"a": [1, 4]}, "'a' item 1 is more than 3"),
        ({"type": "number"}, float("nan"), "is no number of JSON"),
        ({"type": "integer", "maximum": 1.5}, 10**400, "is more than 1.5"),
    ],
)
def test_what_is_wrong_is_said(schema: object, value: object, why: str) -> None:
    assert value_flaw(schema, value, {}) == why


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (None, 1),
        ({"minimum": True}, 1),
        ({"minimum": "1"}, 1),
        ({"items": [{}]}, [1]),
        ({"type": "any"}, 1),
        ({"multipleOf": 0}, 1),
        ({"unevaluatedProperties": False}, {}),
        ({"dependencies": {}}, {}),
        ({"$dynamicRef": "#/$defs/a"}, 1),
        ({"$ref": "#/$defs/none"}, 1),
        ({"$ref": "https://example.com"}, 1),
        ({"$ref": "#"}, 1),
        ({"not": {"unevaluatedItems": False}}, []),
        ({"pattern": "(?=a)"}, "a"),
        ({"pattern": r"(a)\1"}, "aa"),
        ({"pattern": r"\Aa"}, "a"),
        ({"pattern": "[[:alpha:]]"}, "a"),
        ({"pattern": "[^]"}, "a"),
        ({"pattern": r"^\S$"}, "\u00a0"),
        ({"pattern": "^.$"}, "\u2028"),
    ],
)
def test_what_cannot_be_judged_is_not(schema: object, value: object) -> None:
    with pytest.raises(Unjudged):
        value_flaw(schema, value, {"$ref": "#"})


@pytest.mark.parametrize("keyword", ["items", "not", "allOf"])
def test_what_is_too_deep_is_not_judged(keyword: str) -> None:
    schema: Any = {}
    value: Any = []
    for _ in range(100):
        schema, value = {keyword: [schema] if keyword == "allOf" else schema}, [value]
    with pytest.raises(Unjudged, match="too long"):
        value_flaw(schema, value, {})


def test_a_schema_that_is_made_to_take_long_is_not_judged() -> None:
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    with pytest.raises(Unjudged, match="too long"):
        value_flaw({"$ref": "#/$defs/d0"}, 1, {"$defs": {**doubling, "d40": {}}})
    with pytest.raises(Unjudged, match="too long"):
        value_flaw({"items": {}}, [0] * MAX_STEPS, {})
    with pytest.raises(Unjudged, match="too long"):
        value_flaw({"uniqueItems": True}, list(range(MAX_STEPS)), {})


@pytest.mark.parametrize(
    "item", [[0] * 1000, {f"a{index}": 0 for index in range(500)}, "a" * 1_000_000, [[[0] * 10] * 10] * 10]
)
def test_items_that_have_to_differ_count_by_their_size(item: Any) -> None:
    assert value_flaw({"uniqueItems": True}, [item, 1], {}) is None
    with pytest.raises(Unjudged, match="too long"):
        value_flaw({"uniqueItems": True}, [[item, index] for index in range(100)], {})


LARGE: dict[str, Any] = {
    "members": {"properties": {f"a{index}": {} for index in range(20_000)}},
    "required names": {"required": [f"a{index}" for index in range(20_000)]},
    "needed names": {"dependentRequired": {"a0": [f"a{index}" for index in range(20_000)]}},
    "values": {"enum": list(range(20_000)), "type": "object"},
    "unknown keywords": {f"x{index}": 1 for index in range(20_000)},
    "patterns": {"patternProperties": {f"^b{index}": {} for index in range(20)}, **dict.fromkeys("xyz", 1)},
}


@pytest.mark.parametrize("part", LARGE)
def test_r78_a_large_schema_that_is_referred_to_often_takes_no_more_steps(part: str) -> None:
    """In each schema that is visited all its entries are read."""
    visits = 0

    class Counted(dict[str, Any]):
        def values(self) -> Any:
            nonlocal visits
            visits += 1
            return super().values()

    value = {f"a{index}": index for index in range(20)}
    root = {"oneOf": [{"$ref": "#/$defs/a"}] * 900, "$defs": {"a": Counted(LARGE[part])}}
    with pytest.raises(Unjudged, match="too long"):
        value_flaw(root, value, root)
    assert 0 < visits <= MAX_STEPS * STEP_SIZE // 20_000 + 1


def test_r78_a_long_pattern_is_not_judged() -> None:
    with pytest.raises(Unjudged, match="cannot be judged"):
        value_flaw({"pattern": "a" * (MAX_PATTERN + 1)}, "a", {})
    with pytest.raises(Unjudged, match="cannot be judged"):
        value_flaw({"pattern": "(.{1,30}a)*" * 30}, "a", {})
    with pytest.raises(Unjudged, match="too long"):
        value_flaw({"allOf": [{"pattern": "(a|b)*c?" * 100}] * 20}, "ab" * 500, {})


def test_what_is_wrong_is_said_briefly() -> None:
    assert len(value_flaw({"type": ["string"] * 1000}, 1, {}) or "") == 300


@pytest.mark.parametrize("reference", ["#node", "node", "", "#/$defs/b", "#/$defs/a/b", "##/$defs"])
def test_a_reference_to_nothing_in_the_document_is_none_to_its_root(reference: str) -> None:
    with pytest.raises(KeyError):
        pointed_to({"$defs": {"a": True}}, reference)
    assert pointed_to({"$defs": {"a/~": True}}, "#/$defs/a~1~0") is True


def test_a_reference_is_percent_encoded() -> None:
    root = {"$defs": {"a b": {"type": "string"}, "a%20b": True}}
    assert pointed_to(root, "#/$defs/a%20b") == {"type": "string"}
    assert pointed_to(root, "#/%24defs/a%2520b") is True
    assert value_flaw({"$ref": "#/$defs/a%20b"}, 1, root) == "is not of type string"
