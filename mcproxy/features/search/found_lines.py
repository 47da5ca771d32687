"""The line of text for each tool that search finds (`catalog.search.signatures`), made at the first find and kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mcproxy.catalog.search.own_tools import effect_of
from mcproxy.catalog.search.signatures import signature
from mcproxy.catalog.views.view import Shown
from mcproxy.protocol.jsonrpc import json_of


class FoundLine(NamedTuple):
    """One tool in the result of a search."""

    name: str
    """The tool's name."""
    json: bytes
    """The text of the line as JSON, without the quotes."""
    size: int
    """Bytes of the text."""


class FoundLines(dict[int, FoundLine]):
    """Lines by the index of their tool in `tools`; a missing one is made."""

    def __init__(self, tools: Sequence[Shown]) -> None:
        super().__init__()
        self._tools = tools

    def __missing__(self, position: int) -> FoundLine:
        shown = self._tools[position]
        text = f"{signature(shown.key, shown.entry)} [{effect_of(shown.entry).value}]"
        line = self[position] = FoundLine(shown.key, json_of(text)[1:-1], len(text.encode()))
        return line


def fitting(sizes: Sequence[int], most: int) -> int:
    """How many of the first lines fit into `most` bytes, with their line ends; at least one."""
    if sum(sizes) + len(sizes) <= most:
        return len(sizes)
    size = 0
    for place, each in enumerate(sizes):
        size += each + 1
        if place and size > most:
            return place
    return len(sizes)
