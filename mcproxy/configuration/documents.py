"""Parse YAML, JSON with comments, or TOML into a tree in which each value knows its line and column.

Interprets no key and expands nothing. Refuses duplicate keys, tags that construct objects, and documents that expand
(by anchors) to more than MAX_VALUES values or MAX_DEPTH levels.
"""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final, NoReturn

import msgspec
import yaml

from mcproxy.configuration.problems import START, ConfigurationError, Path, PathKey, Place, Problem

MAX_VALUES: Final = 500_000
MAX_DEPTH: Final = 64

DocumentScalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """A value, the place of its key (in a list, of the item), and the path of keys to it."""

    value: DocumentScalar | dict[str, Node] | list[Node]
    place: Place = START
    path: Path = ()
    text: str = ""
    """A scalar as written: where a text is expected, `yes` and `0123` are texts."""
    extent: tuple[int, int] | None = None
    """Where the value begins and ends in the file, in characters; None in TOML, and for a whole empty file."""

    @property
    def plain(self) -> object:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain for node in self.value]
        return self.value

    @property
    def members(self) -> dict[str, Node]:
        """The members of a mapping; empty for any other value."""
        return self.value if isinstance(self.value, dict) else {}


def parse(text: str, file: str) -> Node:
    """The tree of `text`, in the format of the suffix of `file`; YAML for an unknown suffix.

    Raises ConfigurationError.
    """
    match PurePath(file).suffix.lower():
        case ".json" | ".jsonc":
            return _Json(text, file).document()
        case ".toml":
            return _parse_toml(text, file)
        case _:
            return _parse_yaml(text, file)


def without_nulls(node: Node) -> Node:
    """The tree without the keys whose value is null: they count as not given."""
    if not isinstance(node.value, dict):
        return node
    kept = {key: without_nulls(member) for key, member in node.value.items() if member.value is not None}
    return replace(node, value=kept)


def follow(node: Node, path: Path) -> Node:
    """The node at `path`, or its nearest ancestor that the file has."""
    for key in path:
        inner = node.value
        if isinstance(inner, dict) and key in inner:
            node = inner[str(key)]
        elif isinstance(inner, list) and isinstance(key, int) and key < len(inner):
            node = inner[key]
        else:
            break
    return node


def _fail(file: str, sentence: str, place: Place | None, path: Path = ()) -> NoReturn:
    raise ConfigurationError([Problem(file, sentence, place, path)])


# YAML


def _parse_yaml(text: str, file: str) -> Node:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        place = _yaml_place(error.problem_mark) if error.problem_mark else None
        _fail(file, f"is not valid YAML: {_yaml_reason(error)}", place)
    except (yaml.YAMLError, RecursionError) as error:
        _fail(file, f"is not valid YAML: {_first_line(error)}", None)
    if root is None:
        return Node({})
    reader = _Yaml(file)
    tree = reader.node(root, START, ())
    if reader.problems:
        raise ConfigurationError(reader.problems)
    return tree


def _yaml_place(mark: yaml.Mark) -> Place:
    return Place(mark.line + 1, mark.column + 1)


_YAML_REASONS: Final = (
    ("found character '\\t'", "a tab, where only spaces may indent"),
    (
        "mapping values are not allowed",
        "a colon where no key can be: quote the text, or correct the indentation",
    ),
    ("could not find expected ':'", "a key without a colon behind it"),
    (
        "expected <block end>",
        "the line is indented like none of the lines above that it could belong to",
    ),
)
"""Beginnings of PyYAML's sentences, and what to say in their place."""


def _yaml_reason(error: yaml.MarkedYAMLError) -> str:
    said = str(error.problem or error.context)
    reason = next((plain for beginning, plain in _YAML_REASONS if said.startswith(beginning)), None)
    if reason is not None:
        return reason
    begun, mark = error.context_mark, error.problem_mark
    since = f" (begun in line {begun.line + 1})" if begun and mark and begun.line != mark.line else ""
    return said.replace("'<stream end>'", "the end of the file") + since


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


_YAML: Final = "tag:yaml.org,2002:"
_YAML_TEXT: Final = frozenset({f"{_YAML}str", f"{_YAML}timestamp", f"{_YAML}value"})
_YAML_TYPED: Final = frozenset({f"{_YAML}int", f"{_YAML}float", f"{_YAML}bool", f"{_YAML}null"})


class _Yaml(msgspec.Struct):
    """Converts PyYAML's nodes. An alias is a shared node there and a copy here, hence the count."""

    file: str
    problems: list[Problem] = msgspec.field(default_factory=list)
    count: int = 0

    def node(self, node: yaml.Node, place: Place, path: Path) -> Node:
        self.count += 1
        if self.count > MAX_VALUES or len(path) > MAX_DEPTH:
            _fail(self.file, f"expands to more than {MAX_VALUES} values or {MAX_DEPTH} levels", place, path)
        extent = node.start_mark.index, node.end_mark.index
        if isinstance(node, yaml.MappingNode):
            return Node(self._members(node, path), place, path, extent=extent)
        if isinstance(node, yaml.SequenceNode):
            items = [
                self.node(item, _yaml_place(item.start_mark), (*path, index)) for index, item in enumerate(node.value)
            ]
            return Node(items, place, path, extent=extent)
        return Node(self._scalar(node, place, path), place, path, node.value, extent)

    def _members(self, mapping: yaml.MappingNode, path: Path) -> dict[str, Node]:
        members: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, value in mapping.value:
            place = _yaml_place(key.start_mark)
            if key.tag == f"{_YAML}merge":
                merged |= self._merged(value, place, path)
            elif not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem(self.file, "a key must be plain text", place, path))
            elif key.value in members:
                sentence = f"duplicate key: it is in line {members[key.value].place.line} already; keep one"
                self.problems.append(Problem(self.file, sentence, place, (*path, key.value)))
            else:
                members[key.value] = self.node(value, place, (*path, key.value))
        return merged | members

    def _merged(self, value: yaml.Node, place: Place, path: Path) -> dict[str, Node]:
        """The members merged by `<<`: of one mapping, or of a list of them of which the first wins."""
        sources = reversed(value.value) if isinstance(value, yaml.SequenceNode) else (value,)
        merged: dict[str, Node] = {}
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                _fail(self.file, "only mappings can be merged with <<", place, path)
            merged |= self.node(source, place, path).members
        return merged

    def _scalar(self, node: yaml.Node, place: Place, path: Path) -> DocumentScalar:
        if node.tag in _YAML_TEXT:
            return str(node.value)
        if node.tag not in _YAML_TYPED:
            self.problems.append(Problem(self.file, f"unknown tag {node.tag}", place, path))
            return None
        try:
            value: DocumentScalar = yaml.constructor.SafeConstructor().construct_object(node)
        except (ValueError, yaml.YAMLError):
            self.problems.append(Problem(self.file, "does not match its tag", place, path))
            return None
        return value


# JSON, with the comments and trailing commas that VS Code allows

_BLANK: Final = re.compile(r"(?:[ \t\r\n\ufeff]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_TOKEN: Final = re.compile(r'[{}\[\]:,]|"(?:[^"\\\x00-\x1f]|\\.)*"|[-+.\w]+')


class _Json:
    """A recursive-descent parser: the standard decoder supports neither comments nor places."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._next = 0
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._line = 0
        self._problems: list[Problem] = []

    def document(self) -> Node:
        token, place = self._take()
        tree = self._value(token, place, ())
        if token := self._take()[0]:
            self._fail(f"unexpected {token} after the document", self._place(self._next - len(token)))
        if self._problems:
            raise ConfigurationError(self._problems)
        return tree

    def _take(self) -> tuple[str, Place]:
        """The next token, empty at the end, and its place."""
        start = self._after_blank(self._next)
        match = _TOKEN.match(self._text, start)
        if match is None and start < len(self._text):
            self._fail("an unfinished string" if self._text[start] == '"' else "unexpected text", self._place(start))
        self._next = match.end() if match else start
        return (match.group() if match else ""), self._place(start)

    def _after_blank(self, start: int) -> int:
        match = _BLANK.match(self._text, start)
        assert match is not None, "the pattern matches nothing as well"
        return match.end()

    def _place(self, offset: int) -> Place:
        """Offsets only grow, so the search continues from the last line found."""
        while self._line + 1 < len(self._line_starts) and self._line_starts[self._line + 1] <= offset:
            self._line += 1
        return Place(self._line + 1, offset - self._line_starts[self._line] + 1)

    def _value(self, token: str, place: Place, path: Path) -> Node:
        if len(path) > MAX_DEPTH:
            self._fail("nested too deeply", place, path)
        start = self._next - len(token)
        if token == "{":
            return Node(self._object(path), place, path, extent=(start, self._next))
        if token == "[":
            return Node(self._array(path), place, path, extent=(start, self._next))
        value = self._scalar(token, place, path)
        return Node(value, place, path, value if isinstance(value, str) else token, (start, self._next))

    def _object(self, path: Path) -> dict[str, Node]:
        members: dict[str, Node] = {}
        for token, place in self._items("}", path):
            if not token.startswith('"'):
                self._fail("a key must be a string in double quotes", place, path)
            key = str(self._scalar(token, place, path))
            colon, after = self._take()
            if colon != ":":
                self._fail('expected ":"', after, (*path, key))
            if key in members:
                sentence = f"duplicate key: it is in line {members[key].place.line} already; keep one"
                self._problems.append(Problem(self._file, sentence, place, (*path, key)))
            node = self._value(self._take()[0], place, (*path, key))
            members.setdefault(key, node)
        return members

    def _array(self, path: Path) -> list[Node]:
        items: list[Node] = []
        for token, place in self._items("]", path):
            items.append(self._value(token, place, (*path, len(items))))
        return items

    def _items(self, end: str, path: Path) -> Iterator[tuple[str, Place]]:
        """The first token of each item up to `end`; a comma may follow the last."""
        token, place = self._take()
        while token != end:
            yield token, place
            token, place = self._take()
            if token == ",":
                token, place = self._take()
            elif token != end:
                self._fail(f'expected "," or "{end}"', place, path)

    def _scalar(self, token: str, place: Place, path: Path) -> DocumentScalar:
        try:
            value: object = json.loads(token)
        except (ValueError, RecursionError):
            self._fail("expected a value" if token else "unexpected end of the file", place, path)
        assert not isinstance(value, (dict, list)), "brackets are tokens of their own"
        return value  # type: ignore[return-value]  # the assertion leaves scalars alone

    def _fail(self, sentence: str, place: Place, path: Path = ()) -> NoReturn:
        _fail(self._file, f"is not valid JSON: {sentence}", place, path)


# TOML


def _parse_toml(text: str, file: str) -> Node:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        place = Place(int(found[1]), int(found[2])) if found else None
        _fail(file, f"is not valid TOML: {str(error).removesuffix(found[0] if found else '').rstrip()}", place)
    return _toml_node(document, (), _toml_places(text), START)


def _toml_node(value: object, path: Path, places: dict[Path, Place], around: Place) -> Node:
    place = places.get(path, around)
    if isinstance(value, dict):
        members = {key: _toml_node(member, (*path, key), places, place) for key, member in value.items()}
        return Node(members, place, path)
    if isinstance(value, list):
        return Node([_toml_node(item, (*path, index), places, place) for index, item in enumerate(value)], place, path)
    if isinstance(value, datetime.date | datetime.time):
        return Node(value.isoformat(), place, path, value.isoformat())
    assert isinstance(value, DocumentScalar)
    return Node(value, place, path, json.dumps(value) if isinstance(value, bool) else str(value))


_TOML_TABLE: Final = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_TOML_KEY: Final = re.compile(r"(\s*+)([^=#\[\]{}]++)=")


def _toml_places(text: str) -> dict[Path, Place]:
    """Places of tables and keys at the beginning of a line; `tomllib` reports none."""
    places: dict[Path, Place] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TOML_TABLE.match(line):
            table = _toml_path(header[1])
            places.setdefault(table, Place(number, 1))
        elif key := _TOML_KEY.match(line):
            places.setdefault((*table, *_toml_path(key[2].rstrip())), Place(number, len(key[1]) + 1))
    return places


def _toml_path(key: str) -> Path:
    """`a."b c"` as ("a", "b c"), parsed by `tomllib` as the only key of a document."""
    try:
        value: object = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    path: list[PathKey] = []
    while isinstance(value, dict):
        name, value = next(iter(value.items()))
        path.append(name)
    return tuple(path)
