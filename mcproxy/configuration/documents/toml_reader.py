"""Read TOML. `tomllib` gives no line numbers: those of tables and keys are searched for in the text."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from typing import Final

from mcproxy.configuration.documents.tree import DocumentScalar, Node, fail
from mcproxy.configuration.problems import START, Path, PathKey, Place


def read_toml(text: str, file: str) -> Node:
    """Raises ConfigurationError."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        place = Place(int(found[1]), int(found[2])) if found else None
        fail(file, f"is not valid TOML: {str(error).removesuffix(found[0] if found else '').rstrip()}", place)
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
