"""The tree of a document: a node for each value, with its place. Interprets no key."""

from __future__ import annotations

from typing import Final, NoReturn

import msgspec
from msgspec.structs import replace

from mcproxy.configuration.problems import START, ConfigurationError, Path, Place, Problem

MAX_VALUES: Final = 500_000
"""Values in one file, those that anchors repeat counted each time."""
MAX_DEPTH: Final = 64
"""Keys and indexes on the way to a value."""

DocumentScalar = str | int | float | bool | None


class Node(msgspec.Struct, frozen=True):
    """A value, the place of its key (in a list, of the item), and the path of keys to it."""

    value: DocumentScalar | dict[str, Node] | list[Node]
    place: Place = START
    path: Path = ()
    text: str = ""
    """A scalar as written: where a text is expected, `yes` and `0123` are texts."""
    extent: tuple[int, int] | None = None
    """The start and end of the value in the file, in characters; None in TOML, and for an empty file."""

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


def fail(file: str, sentence: str, place: Place | None, path: Path = ()) -> NoReturn:
    """Raises ConfigurationError."""
    raise ConfigurationError([Problem(file, sentence, place, path)])
