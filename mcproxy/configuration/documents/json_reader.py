"""Read JSON, with the comments and trailing commas that VS Code allows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn

from mcproxy.configuration.documents.tree import MAX_DEPTH, DocumentScalar, Node, fail
from mcproxy.configuration.problems import ConfigurationError, Path, Place, Problem

_BLANK: Final = re.compile(r"(?:[ \t\r\n\ufeff]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_TOKEN: Final = re.compile(r'[{}\[\]:,]|"(?:[^"\\\x00-\x1f]|\\.)*"|[-+.\w]+')
_BAD_ESCAPE: Final = re.compile(r'\\(?:(?!["\\/bfnrtu])|u(?![0-9a-fA-F]{4}))')
"""A backslash that begins no escape, in a string whose other escapes have been removed."""
_ESCAPE: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_DRIVE: Final = re.compile(r'(?<=^"[A-Za-z]:)\\[bfnrt]')
"""The backslash behind a drive, taken for the beginning of a control character."""
_OF_COMMANDS: Final = frozenset({"command", "args", "env", "cwd", "envFile"})
"""Keys whose texts are often paths."""
_BACKSLASH: Final = "a backslash in a string is written twice: C:\\\\Users; or write C:/Users"
_END: Final = "unexpected end of the file"


class JsonReader:
    """A recursive-descent parser: the standard decoder supports neither comments nor places."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._next = 0
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._line = 0
        self._problems: list[Problem] = []

    def document(self) -> Node:
        """The tree of the whole text. Raises ConfigurationError with every problem in it. Called once."""
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
                self._fail("a key must be a string in double quotes" if token else _END, place, path)
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
        if token.startswith('"') and "\\" in token:
            self._check_escapes(token, path)
        try:
            value: object = json.loads(token)
        except (ValueError, RecursionError):
            self._fail("expected a value" if token else _END, place, path)
        assert not isinstance(value, (dict, list)), "brackets are tokens of their own"
        return value  # type: ignore[return-value]  # the assertion leaves scalars alone

    def _check_escapes(self, token: str, path: Path) -> None:
        """Reports the first backslash of a string that begins no escape."""
        bare = _ESCAPE.sub(lambda match: "." * len(match[0]), token)
        wrong = _BAD_ESCAPE.search(bare)
        if wrong is None and not _OF_COMMANDS.isdisjoint(path):
            wrong = _DRIVE.search(token)
        if wrong is not None:
            self._fail(_BACKSLASH, self._place(self._next - len(token) + wrong.start()), path)

    def _fail(self, sentence: str, place: Place, path: Path = ()) -> NoReturn:
        fail(self._file, f"is not valid JSON: {sentence}", place, path)
