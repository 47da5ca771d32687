"""What is wrong with a configuration: sentences, each with its file, line, column and key. Imports no library."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

PathKey = str | int
Path = tuple[PathKey, ...]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Counted from 1, as editors do."""

    line: int
    column: int


START: Final = Place(1, 1)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a configuration, as an editor's list of errors shows it. Holds no expanded value."""

    file: str
    sentence: str
    place: Place | None = None
    path: Path = ()

    def __str__(self) -> str:
        where = self.file if self.place is None else f"{self.file}:{self.place.line}:{self.place.column}"
        return ": ".join(filter(None, (where, dotted(self.path), self.sentence)))


class ConfigurationError(Exception):
    """All that is wrong, at once and in the order of the file.

    `files` are those that were read, as far as that is known: when one of them changes, there may be less wrong.
    """

    def __init__(self, problems: list[Problem], files: Collection[PurePath] = ()) -> None:
        self.files = files
        self.problems = sorted(problems, key=lambda problem: problem.place or START)
        super().__init__("\n".join(map(str, self.problems)))


def dotted(path: Path) -> str:
    """`mcpServers.github.args.0`; a key that holds a dot or a space is quoted."""
    return ".".join(_quoted(key) for key in path)


def _quoted(key: PathKey) -> str:
    return str(key) if isinstance(key, int) or re.fullmatch(r"[\w-]+", key) else json.dumps(key, ensure_ascii=False)
