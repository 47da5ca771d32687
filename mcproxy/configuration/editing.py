"""Change one member of a configuration's text (YAML, JSON with comments or TOML) and leave every other byte as it is.

A change is one `TextEdit`, which replaces a piece of the text. Each is checked by parsing the result, which may differ
from the original in that member alone; a text that cannot be changed so is refused.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

import yaml

from mcproxy.configuration.documents.parsing import parse_document
from mcproxy.configuration.documents.tree import Node, follow
from mcproxy.configuration.problems import ConfigurationError, Path, Place, Problem

_INDENT: Final = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_REST_OF_MEMBER: Final = re.compile(r"(?P<comma>,?)(?P<comment>[ \t]*//[^\r\n]*)?")
_TABLE: Final = re.compile(r"\s*\[")


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Replaces the piece `before` of a text, at `start`, by `after`."""

    start: int
    before: str
    after: str

    def apply(self, text: str) -> str:
        """The text, for which the edit was made, after the change."""
        return text[: self.start] + self.after + text[self.start + len(self.before) :]

    def revert(self, text: str) -> str | None:
        """A text that was changed further since, without this change; None where its piece is not there once."""
        if not self.after or text.count(self.after) != 1:
            return None
        return text.replace(self.after, self.before)


def put(text: str, file: str, path: Path, value: object) -> TextEdit:
    """The edit that gives the member at `path` a value, and makes the mappings around it where there are none.

    Raises ConfigurationError where the text is not valid, or is not written so that this can be done.
    """
    return _checked(text, file, path, _language(text, file).put(path, value), value)


def remove(text: str, file: str, path: Path) -> TextEdit:
    """The edit that takes the member at `path` away. Raises ConfigurationError as `put` does, and if it is missing."""
    node = follow(parse_document(text, file), path)
    if node.path != path:
        raise ConfigurationError([Problem(file, "is not there", node.place, path)])
    return _checked(text, file, path, _language(text, file).remove(path), _NOTHING)


_NOTHING: Final = object()


def _checked(text: str, file: str, path: Path, edit: TextEdit | None, value: object) -> TextEdit:
    wanted = _changed(parse_document(text, file).plain, path, value)
    if edit is not None and _reads_as(edit.apply(text), file, wanted):
        return edit
    sentence = "cannot be changed without changing other lines too: change it by hand"
    raise ConfigurationError([Problem(file, sentence, None, path)])


def _reads_as(text: str, file: str, wanted: object) -> bool:
    try:
        return parse_document(text, file).plain == wanted
    except ConfigurationError:
        return False


def _changed(plain: object, path: Path, value: object) -> object:
    """The tree with another value at `path`, or without it."""
    members = dict(plain) if isinstance(plain, dict) else {}
    key, *rest = path
    if rest:
        members[key] = _changed(members.get(key), tuple(rest), value)
    elif value is _NOTHING:
        members.pop(key, None)
    else:
        members[key] = value
    return members


def _language(text: str, file: str) -> _JsonText | _TomlText | _YamlText:
    match PurePath(file).suffix.lower():
        case ".json" | ".jsonc":
            return _JsonText(text, parse_document(text, file))
        case ".toml":
            return _TomlText(text, parse_document(text, file))
        case _:
            return _YamlText(text, parse_document(text, file))


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _offset(text: str, place: Place) -> int:
    """The offset of a line and column in the text."""
    start = 0
    for _ in range(place.line - 1):
        start = text.index("\n", start) + 1
    return start + place.column - 1


def _end_of_line(text: str, start: int) -> int:
    """The start of the next line after `start`."""
    end = text.find("\n", start)
    return len(text) if end < 0 else end + 1


def _wrapped(path: Path, value: object) -> object:
    """`value` inside mappings with the keys of `path`, the first outermost."""
    for key in reversed(path):
        value = {key: value}
    return value


def _deepest(document: Node, path: Path) -> tuple[Node, Path]:
    """The innermost value on the way to `path` that the document has, and the keys that it lacks."""
    node = follow(document, path)
    return node, path[len(node.path) :]


def _without_flow_member(text: str, around: Node, node: Node) -> TextEdit | None:
    """The edit that takes a member and the comma beside it out of a mapping in braces."""
    if around.extent is None or node.extent is None:
        return None
    members = list(around.members.values())
    index = members.index(node)
    before = members[index - 1].extent
    if len(members) == 1:
        start, end = around.extent[0] + 1, around.extent[1] - 1
    elif index == 0 or before is None:
        start, end = _offset(text, node.place), _offset(text, members[1].place)
    else:
        start, end = before[1], node.extent[1]
    return TextEdit(start, text[start:end], "")


@dataclass(frozen=True, slots=True)
class _JsonText:
    text: str
    document: Node

    def put(self, path: Path, value: object) -> TextEdit | None:
        node, missing = _deepest(self.document, path)
        if node.extent is None:
            return None
        if not missing or not isinstance(node.value, dict):
            return self._replaced(node.extent, _wrapped(missing, value), len(path) - len(missing))
        member = f"{json.dumps(missing[0])}: "
        inner = _wrapped(missing[1:], value)
        if not node.value:
            return self._replaced(node.extent, {missing[0]: inner}, len(node.path))
        last = max(member.extent[1] for member in node.value.values() if member.extent is not None)
        start, end = node.extent
        if "\n" not in self.text[start:end]:
            return TextEdit(last, "", f", {member}{json.dumps(inner, ensure_ascii=False)}")
        rest = _REST_OF_MEMBER.match(self.text, last)
        assert rest is not None, "the pattern matches nothing as well"
        depth = len(node.path) + 1
        after = (
            f",{rest['comment'] or ''}{_newline(self.text)}{self._indent * depth}{member}{self._dumped(inner, depth)}"
        )
        return TextEdit(last, rest[0], after + rest["comma"])

    def remove(self, path: Path) -> TextEdit | None:
        return _without_flow_member(self.text, follow(self.document, path[:-1]), follow(self.document, path))

    @property
    def _indent(self) -> str:
        found = _INDENT.search(self.text)
        return found[1] if found else "  "

    def _dumped(self, value: object, depth: int) -> str:
        lines = json.dumps(value, indent=self._indent, ensure_ascii=False).split("\n")
        return f"{_newline(self.text)}{self._indent * depth}".join(lines)

    def _replaced(self, extent: tuple[int, int], value: object, depth: int) -> TextEdit:
        start, end = extent
        return TextEdit(start, self.text[start:end], self._dumped(value, depth))


@dataclass(frozen=True, slots=True)
class _YamlText:
    text: str
    document: Node

    def put(self, path: Path, value: object) -> TextEdit | None:
        node, missing = _deepest(self.document, path)
        if node.extent is None or (not missing and not node.path):
            return self._inserted(len(self.text), 0, _wrapped(missing, value))
        if not missing:
            around = follow(self.document, path[:-1])
            if self._is_flow(around):
                start, end = node.extent
                return TextEdit(start, self.text[start:end], json.dumps(value, ensure_ascii=False))
            start, end = self._lines_of(node)
            block = self._block({path[-1]: value}, node.place.column - 1)
            return TextEdit(start, self.text[start:end], block)
        inner = _wrapped(missing[1:], value)
        if not node.members:
            return self._instead_of_nothing(node, {missing[0]: inner})
        ends = [end for member in node.members.values() if (end := _last_end(member)) <= node.extent[1]]
        if self._is_flow(node):
            member = f", {json.dumps(missing[0], ensure_ascii=False)}: {json.dumps(inner, ensure_ascii=False)}"
            return TextEdit(max(ends), "", member)
        own = [member for member in node.members.values() if member.path[:-1] == node.path]
        return self._inserted(self._behind(max(ends)), own[0].place.column - 1, {missing[0]: inner})

    def remove(self, path: Path) -> TextEdit | None:
        around, node = follow(self.document, path[:-1]), follow(self.document, path)
        if self._is_flow(around):
            return _without_flow_member(self.text, around, node)
        if node.extent is None:
            return None
        if len(around.members) == 1:
            start = self._behind(_offset(self.text, node.place) - 1) if not around.path else None
            if start is None and around.extent is not None:
                begin, (_, end) = _offset(self.text, around.place), self._lines_of(node)
                colon = self.text.index(":", begin + len(str(path[-2])))
                return TextEdit(colon + 1, self.text[colon + 1 : end], f" {{}}{_newline(self.text)}")
        start, end = self._lines_of(node)
        return TextEdit(start, self.text[start:end], "")

    def _is_flow(self, node: Node) -> bool:
        return node.extent is not None and self.text[node.extent[0] : node.extent[0] + 1] == "{"

    def _behind(self, end: int) -> int:
        """Where the line after that of the end of a value begins; a block of text ends there already."""
        return end if end > 0 and self.text[end - 1] == "\n" else _end_of_line(self.text, end)

    def _lines_of(self, node: Node) -> tuple[int, int]:
        """From the beginning of the key's line to the end of the value's last."""
        start = _offset(self.text, Place(node.place.line, 1))
        return start, self._behind(_last_end(node))

    def _instead_of_nothing(self, node: Node, members: Mapping[object, object]) -> TextEdit | None:
        """The members of a mapping that has none: `key:` or `key: {}`."""
        assert node.extent is not None
        if node.value not in (None, {}):
            return None
        if not node.path:
            return self._inserted(len(self.text), 0, members)
        start, end = node.extent
        line = _end_of_line(self.text, end)
        while start > 0 and self.text[start - 1] in " \t":
            start -= 1
        block = self._block(members, node.place.column - 1 + 2)
        rest = self.text[end:line].rstrip("\r\n")
        return TextEdit(start, self.text[start:line], f"{rest}{_newline(self.text)}{block}")

    def _inserted(self, at: int, indent: int, members: object) -> TextEdit:
        newline = _newline(self.text)
        begin = newline if at and self.text[at - 1] != "\n" else ""
        return TextEdit(at, "", begin + self._block(members, indent))

    def _block(self, members: object, indent: int) -> str:
        block = yaml.safe_dump(members, sort_keys=False, allow_unicode=True, width=10_000)
        return textwrap.indent(block, " " * indent).replace("\n", _newline(self.text))


def _last_end(node: Node) -> int:
    """Where the last value inside `node` ends: a mapping's own end is that of the comments behind it."""
    inner = node.value
    items = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
    ends = [_last_end(item) for item in items]
    own = node.extent[1] if node.extent is not None else 0
    return max(ends) if ends else own


@dataclass(frozen=True, slots=True)
class _TomlText:
    text: str
    document: Node

    def put(self, path: Path, value: object) -> TextEdit | None:
        node, missing = _deepest(self.document, path)
        if not missing:
            return None
        newline = _newline(self.text)
        if isinstance(value, dict):
            begin = newline if self.text and not self.text.endswith("\n") else ""
            gap = newline if self.text.strip() else ""
            tables = "\n".join(_toml_tables(path, value)).replace("\n", newline)
            return TextEdit(len(self.text), "", f"{begin}{gap}{tables}")
        header = _end_of_line(self.text, _offset(self.text, node.place))
        return TextEdit(header, "", f"{_toml_key(path[-1])} = {_toml_value(value)}{newline}")

    def remove(self, path: Path) -> TextEdit | None:
        """The lines from the table's header to the next that is not of a table inside it."""
        start = _offset(self.text, Place(follow(self.document, path).place.line, 1))
        inside = re.compile(r"\s*\[\s*" + r"\s*\.\s*".join(re.escape(_toml_key(key)) for key in path) + r"\s*[.\]]")
        end = start
        while end < len(self.text):
            line = self.text[end : _end_of_line(self.text, end)]
            if _TABLE.match(line) and not inside.match(line):
                break
            end += len(line)
        return TextEdit(start, self.text[start:end], "")


def _toml_tables(path: Path, members: Mapping[object, object]) -> list[str]:
    """A table as TOML, and each mapping in it as a table of its own."""
    values = [f"{_toml_key(key)} = {_toml_value(value)}\n" for key, value in members.items() if not _is_table(value)]
    tables = [f"[{'.'.join(map(_toml_key, path))}]\n{''.join(values)}"]
    for key, value in members.items():
        if isinstance(value, dict):
            tables += _toml_tables((*path, str(key)), value)
    return tables


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _toml_key(key: object) -> str:
    text = str(key)
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else json.dumps(text)


def _toml_value(value: object) -> str:
    """A scalar or list as TOML: its basic strings are those of JSON."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
