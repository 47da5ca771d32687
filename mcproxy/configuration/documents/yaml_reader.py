"""Read YAML by PyYAML's nodes, which know their places; nothing is constructed but plain values."""

from __future__ import annotations

import re
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
    except yaml.reader.ReaderError as error:
        before = text[: error.position].splitlines() or [""]
        place = Place(len(before), len(before[-1]) + 1)
        fail(file, f"is not valid YAML: the character U+{error.character:04X} has no place here", place)
    except RecursionError:
        fail(file, "is not valid YAML: it is nested too deeply", None)
    if root is None:
        return Node({})
    reader = _Yaml(file)
    tree = reader.node(root, START, ())
    if reader.problems:
        raise ConfigurationError(reader.problems)
    return tree


def _yaml_place(mark: yaml.Mark) -> Place:
    return Place(mark.line + 1, mark.column + 1)


_BEHIND: Final = "something behind the end of a value: quote the whole of it, or remove what is too much"
_YAML_REASONS: Final = (
    (r"found character '\\t'", "a tab, where only spaces may indent"),
    (r"found character '(.)' that cannot start", "no text may begin with {0}: quote it"),
    (r"mapping values are not allowed", "a colon where no key can be: quote the text, or correct the indentation"),
    (r"sequence entries are not allowed", "a list cannot begin behind its key: write `-` in a line of its own"),
    (r"could not find expected ':'", "a key without a colon behind it"),
    (r"quoted scalar: found unexpected end", "a quotation mark that is never closed"),
    (
        r"quoted scalar: (?:expected escape|found unknown escape)",
        "within double quotes \\ is an escape: use single ones",
    ),
    (r"scanning an alias", "* begins a reference to an anchor: quote the text"),
    (r"found undefined alias '(.*)'", "*{0} refers to an anchor, &{0}, that is not above: quote it if it is a text"),
    (r"scanning an anchor", "& begins the name of an anchor: quote the text"),
    (r"but found another document", "a second document begins here: keep one"),
    (r"expected the node content, but found '([\]},])'", "a {0} where a value should be"),
    (r"expected '?<(?:block end|document start)>'?, but found '(?:<scalar>|[,\]}])'", _BEHIND),
    (r"expected <block end>", "the line is indented like none of the lines above that it could belong to"),
)
"""PyYAML's messages (context and problem), and ours in their place."""


def _yaml_reason(error: yaml.MarkedYAMLError) -> str:
    said = f"{error.context or ''}: {error.problem or ''}"
    begun, mark = error.context_mark, error.problem_mark
    since = f" (begun in line {begun.line + 1})" if begun and mark and begun.line != mark.line else ""
    for pattern, plain in _YAML_REASONS:
        if found := re.search(pattern, said, re.DOTALL):
            return plain.format(*found.groups()) + (since if "quoted scalar" in pattern else "")
    return str(error.problem or error.context).replace("'<stream end>'", "the end of the file") + since


_YAML: Final = "tag:yaml.org,2002:"
_YAML_TEXT: Final = frozenset({f"{_YAML}str", f"{_YAML}timestamp", f"{_YAML}value"})
_YAML_NUMBERS: Final = frozenset({f"{_YAML}int", f"{_YAML}float"})
_YAML_TYPED: Final = _YAML_NUMBERS | {f"{_YAML}bool", f"{_YAML}null"}


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
        # YAML 1.1 counts by sixties, and reads 22:22 as 1342: a text here, as in YAML 1.2.
        if node.tag in _YAML_TEXT or (node.tag in _YAML_NUMBERS and ":" in node.value):
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
