"""One member of a file changed, and every other byte as it was."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import event, given
from hypothesis import strategies as st

from mcproxy.configuration.documents.parsing import parse_document
from mcproxy.configuration.editing import TextEdit, put, remove
from mcproxy.configuration.problems import ConfigurationError

SERVER = {"command": "npx", "args": ["-y", "x"], "env": {"A": "1"}}


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("a.json", "{}", '{\n  "m": {\n    "n": {\n      "command": "npx"\n    }\n  }\n}'),
        ("a.json", '{"m": {"a": 1}}', '{"m": {"a": 1, "n": {"command": "npx"}}}'),
        (
            "a.json",
            '{\n\t"m": {\n\t\t"a": {} // the first\n\t}\n}\n',
            '{\n\t"m": {\n\t\t"a": {}, // the first\n\t\t"n": {\n\t\t\t"command": "npx"\n\t\t}\n\t}\n}\n',
        ),
        (
            "a.json",
            '{\r\n  "m": {\r\n    "a": {},\r\n  },\r\n}',
            '{\r\n  "m": {\r\n    "a": {},\r\n    "n": {\r\n      "command": "npx"\r\n    },\r\n  },\r\n}',
        ),
        (
            "a.json",
            '{\n    "m": null\n}',
            '{\n    "m": {\n        "n": {\n            "command": "npx"\n        }\n    }\n}',
        ),
        ("a.yaml", "", "m:\n  n:\n    command: npx\n"),
        ("a.yaml", "# mine\nproxy:\n  port: 1", "# mine\nproxy:\n  port: 1\nm:\n  n:\n    command: npx\n"),
        ("a.yaml", "m:\n# none yet\np: 1\n", "m:\n  n:\n    command: npx\n# none yet\np: 1\n"),
        ("a.yaml", "m: {}  # none\np: 1\n", "m:  # none\n  n:\n    command: npx\np: 1\n"),
        ("a.yaml", "m: {a: 1}\n", 'm: {a: 1, "n": {"command": "npx"}}\n'),
        (
            "a.yaml",
            "m:\n    a: # one\n        args: [x] # two\n# about p\np: 1\n",
            "m:\n    a: # one\n        args: [x] # two\n    n:\n      command: npx\n# about p\np: 1\n",
        ),
        ("a.yaml", "m:\n  a: |\n    text\n\np: 1\n", "m:\n  a: |\n    text\n\n  n:\n    command: npx\np: 1\n"),
        ("a.toml", "", '[m.n]\ncommand = "npx"\n'),
        ("a.toml", "model = 1 # mine\n[m.a]\nx = 2", 'model = 1 # mine\n[m.a]\nx = 2\n\n[m.n]\ncommand = "npx"\n'),
    ],
)
def test_a_new_member_leaves_every_other_byte_as_it_was(file: str, before: str, after: str) -> None:
    edit = put(before, file, ("m", "n"), {"command": "npx"})
    assert edit.apply(before) == after
    assert edit.revert(after) == before


@pytest.mark.parametrize(
    ("file", "before"),
    [
        ("a.json", '{"m": {"n": {"b": 1}, "c": 2}}'),
        ("a.yaml", "m:\n  n: # old\n    b: 1 # x\n  c: 2\n"),
        ("a.yaml", "m: {n: {b: 1}, c: 2}\n"),
    ],
)
def test_a_member_that_is_there_is_replaced(file: str, before: str) -> None:
    edit = put(before, file, ("m", "n"), {"command": "npx"})
    assert parse_document(edit.apply(before), file).plain == {"m": {"n": {"command": "npx"}, "c": 2}}
    assert edit.revert(edit.apply(before)) == before


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("a.json", '{"m": {"n": 1}}', '{"m": {}}'),
        ("a.json", '{"m": {"n": 1, "c": 2}}', '{"m": {"c": 2}}'),
        ("a.json", '{\n "m": {\n  "c": 2,\n  "n": 1\n }\n}', '{\n "m": {\n  "c": 2\n }\n}'),
        ("a.yaml", "m:\n  n:\n    b: 1\n  # about c\n  c: 2\n", "m:\n  # about c\n  c: 2\n"),
        ("a.yaml", "m:\n  n:\n    b: 1\np: 2\n", "m: {}\np: 2\n"),
        ("a.toml", "a = 1\n[m.n]\nb = 1\n[m.n.env]\nc = 2\n[m.z]\nd = 3\n", "a = 1\n[m.z]\nd = 3\n"),
    ],
)
def test_a_member_is_taken_away_and_nothing_else(file: str, before: str, after: str) -> None:
    assert remove(before, file, ("m", "n")).apply(before) == after


def test_one_switch_of_a_server_is_put_in_its_place() -> None:
    text = "m:\n  n:\n    command: x # mine\n  o: {command: y}\n"
    text = put(text, "a.yaml", ("m", "n", "enabled"), False).apply(text)
    text = put(text, "a.yaml", ("m", "o", "enabled"), False).apply(text)
    assert text == 'm:\n  n:\n    command: x # mine\n    enabled: false\n  o: {command: y, "enabled": false}\n'
    text = put(text, "a.yaml", ("m", "n", "enabled"), True).apply(text)
    assert "enabled: true\n  o:" in text


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.toml", "m = {a = 1}\n"),
        ("a.yaml", "base: &base {a: 1}\nm: *base\n"),
        ("a.yaml", "m: text\n"),
    ],
)
def test_a_text_that_would_say_something_else_afterwards_is_not_changed(file: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match="change it by hand"):
        put(text, file, ("m", "n"), {"command": "npx"})


def test_a_member_that_is_not_there_cannot_be_taken_away() -> None:
    with pytest.raises(ConfigurationError, match=r"m\.n: is not there"):
        remove("m:\n  a: 1\n", "a.yaml", ("m", "n"))


def test_an_edit_is_taken_back_from_a_text_that_was_changed_elsewhere() -> None:
    edit = put("m:\n  a: 1\n", "a.yaml", ("m", "n"), SERVER)
    later = "# new\n" + edit.apply("m:\n  a: 1\n") + "p: 2\n"
    assert edit.revert(later) == "# new\nm:\n  a: 1\np: 2\n"
    assert edit.revert("m: {}\n") is None
    assert TextEdit(0, "x", "").revert("x") is None


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
values = st.recursive(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=8) | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@given(servers=st.dictionaries(names, values, max_size=4), name=names, value=st.dictionaries(names, values, max_size=3))
def test_whatever_a_file_says_it_says_that_and_the_new_member(
    servers: dict[str, object], name: str, value: dict[str, object]
) -> None:
    whole = {"m": servers, "other": 1}
    for file, text in (
        ("a.json", json.dumps(whole, indent=2)),
        ("a.json", json.dumps(whole)),
        ("a.yaml", yaml.safe_dump(whole, allow_unicode=True)),
    ):
        try:
            before = parse_document(text, file).plain
        except ConfigurationError:
            continue  # such as keys that YAML writes with a question mark
        assert before == whole
        try:
            changed = put(text, file, ("m", name), value).apply(text)
        except ConfigurationError:
            event(f"refused in {file}")
            continue
        assert parse_document(changed, file).plain == {**whole, "m": {**servers, name: value}}
