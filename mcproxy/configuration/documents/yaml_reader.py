"""Read YAML by PyYAML's nodes, which know their places; nothing is constructed but plain values."""

from __future__ import annotations

from typing import Final

import msgspec
import yaml

from mcproxy.configuration.documents.tree import MAX_DEPTH, MAX_VALUES, DocumentScalar, Node, fail
from mcproxy.configuration.problems import START, ConfigurationError, Path, Place, Problem


def read_yaml(text: str, file: str) -> Node:
    """Raises ConfigurationError."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        place = _yaml_place(error.problem_mark) if error.problem_mark else None
        fail(file, f"is not valid YAML: {_yaml_reason(error)}", place)
    except (yaml.YAMLError, RecursionError) as error:
        fail(file, f"is not valid YAML: {_first_line(error)}", None)
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
            fail(self.file, f"expands to more than {MAX_VALUES} values or {MAX_DEPTH} levels", place, path)
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
                fail(self.file, "only mappings can be merged with <<", place, path)
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
