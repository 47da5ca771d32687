"""Trees of YAML, JSON with comments and TOML: what they hold, where it stands, and what is refused."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.configuration.documents.parsing import parse_document
from mcproxy.configuration.problems import ConfigurationError, Place, dotted

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def problems(text: str, name: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse_document(text, name)
    return [str(problem) for problem in caught.value.problems]


@given(VALUES, st.sampled_from([None, 2]), st.booleans())
def test_json_is_read_as_the_standard_decoder_reads_it(value: object, indent: int | None, ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    assert parse_document(text, "a.json").plain == json.loads(text)


@given(st.text(alphabet='{}[]":,/* \n\t\\a1-.tnf$&!<'), st.sampled_from(["a.json", "a.yaml", "a.toml"]))
def test_any_text_is_a_tree_or_a_refusal(text: str, name: str) -> None:
    with contextlib.suppress(ConfigurationError):
        parse_document(text, name)


def test_comments_and_trailing_commas_are_for_people() -> None:
    text = '// one\n{"a": [1, /* "two", */ 3,], // "b"\n\t"u": "http://x//y",\n}'
    tree = parse_document(text, "a.json")
    assert tree.plain == {"a": [1, 3], "u": "http://x//y"}
    assert tree.members["u"].place == Place(3, 2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "a:\n  - b: 1\n    c: 2\n"),
        ("a.json", '{"a":\n  [{"b": 1,\n    "c": 2}]}'),
        ("a.toml", "[a]\nx.b = 1\n    x.c = 2\n"),
    ],
)
def test_every_key_has_its_place(name: str, text: str) -> None:
    inner = parse_document(text, name).members["a"]
    last = inner.value[0] if isinstance(inner.value, list) else inner.members["x"]
    assert last.members["c"].place == Place(3, 5)
    assert last.members["c"].text == "2"


def test_numbers_with_colons_are_texts() -> None:
    """YAML 1.1 reads them by sixties: `22:22`, a mapping of ports, as 1342."""
    tree = parse_document("a: [22:22, 12:30:45, 1:30.5, -1:00, 80]\n", "a.yaml")
    assert tree.plain == {"a": ["22:22", "12:30:45", "1:30.5", "-1:00", 80]}


def test_a_path_is_written_with_dots_and_quoted_where_it_must_be() -> None:
    assert dotted(("mcpServers", "my server", "args", 0)) == 'mcpServers."my server".args.0'


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "a: [1\nb: 2", "a.yaml:2:2: is not valid YAML"),
        ("a.yaml", "a: b: c", "a.yaml:1:5: is not valid YAML"),
        ("a.yaml", "a: 1\nb: \x00", "a.yaml:2:4: is not valid YAML: the character U+0000 has no place here"),
        ("a.yaml", "? [a, b]\n: 1", "a.yaml:1:3: a key must be plain text"),
        ("a.yaml", "proxy: !!python/object:os.system x", "a.yaml:1:1: proxy: unknown tag"),
        ("a.json", '{"a": 1', 'a.json:1:8: is not valid JSON: expected "," or "}"'),
        ("a.json", '{"a": "b', "a.json:1:7: is not valid JSON: an unfinished string"),
        ("a.json", '{"a": 1} 2', "a.json:1:10: is not valid JSON: unexpected 2 after the document"),
        ("a.json", "{'a': 1}", "a.json:1:2: is not valid JSON: unexpected text"),
        ("a.json", '{"a": nul}', "a.json:1:2: a: is not valid JSON: expected a value"),
        ("a.json", '{"a": {', "a.json:1:8: a: is not valid JSON: unexpected end of the file"),
        ("a.json", "", "a.json:1:1: is not valid JSON: unexpected end of the file"),
        ("a.toml", "a = ]", "a.toml:1:5: is not valid TOML: Invalid value"),
        ("a.toml", "a = ", "a.toml: is not valid TOML"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_refused_with_its_place(name: str, text: str, expected: str) -> None:
    (problem,) = problems(text, name)
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tools: [*]", "1:10: is not valid YAML: * begins a reference to an anchor: quote the text"),
        ("tools: *all", "1:8: is not valid YAML: *all refers to an anchor, &all, that is not above: quote it"),
        ("args: [-y, @scope/package]", "1:12: is not valid YAML: no text may begin with @: quote it"),
        ("a: &", "is not valid YAML: & begins the name of an anchor: quote the text"),
        ('a: "uvx\nb: 1\n', "3:1: is not valid YAML: a quotation mark that is never closed (begun in line 1)"),
        (r'a: "C:\Users"', r"1:9: is not valid YAML: within double quotes \ is an escape: use single ones"),
        ("a: {}\n---\nb: {}", "2:1: is not valid YAML: a second document begins here: keep one"),
        ("a: - b", "1:4: is not valid YAML: a list cannot begin behind its key: write `-` in a line of its own"),
        ("a: 'b' c", "1:8: is not valid YAML: something behind the end of a value: quote the whole of it"),
        ('"a": "b",\n"c": "d"', "1:9: is not valid YAML: something behind the end of a value"),
        ("a: ]", "1:4: is not valid YAML: a ] where a value should be"),
        ("a: 1\n b: 2", "2:3: is not valid YAML: a colon where no key can be"),
        ("a:\n  b: 1\n c: 2", "3:2: is not valid YAML: the line is indented like none of the lines above"),
    ],
)
def test_r87_what_is_no_yaml_is_told_with_its_cause_and_remedy(text: str, expected: str) -> None:
    (problem,) = problems(text, "a.yaml")
    assert expected in problem


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_duplicate_keys_are_errors(name: str) -> None:
    text = '{"mcpServers": {\n"x": {"command": "a"},\n"x": {"command": "b"}}}'
    assert problems(text, name) == [f"{name}:3:1: mcpServers.x: duplicate key: it is in line 2 already; keep one"]


def test_anchors_that_unfold_without_end_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (bomb,) = problems("\n".join(lines), "a.yaml")
    assert "expands to more than" in bomb
    (loop,) = problems("a: &a [*a]", "a.yaml")
    assert "expands to more than" in loop


def test_nesting_without_end_is_refused() -> None:
    assert "too deeply" in problems("[" * 100_000, "a.json")[0]
    assert len(problems("[" * 100_000, "a.yaml")) == 1


@pytest.mark.parametrize(
    ("path", "column"), [("C:\\Users\\x", 19), ("C:\\temp", 19), ("a\\\\b\\c\\q", 21), ("\\\\host\\\\share\\x", 30)]
)
def test_a_single_backslash_in_json_is_pointed_at(path: str, column: int) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_document('{"a": {\n    "command": "' + path + '"}}', "a.json")
    (problem,) = refused.value.problems
    assert (problem.place, problem.path) == (Place(2, column), ("a", "command"))
    assert "a backslash in a string is written twice" in problem.sentence
