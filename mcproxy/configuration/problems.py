"""Problems of a configuration: sentences, each with file, line, column and key. Imports no library."""

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
    """A line and a column, from 1."""

    line: int
    column: int


START: Final = Place(1, 1)


@dataclass(frozen=True, slots=True)
class Problem:
    """One error of a configuration. Contains no expanded value."""

    file: str
    sentence: str
    place: Place | None = None
    path: Path = ()

    def __str__(self) -> str:
        where = self.file if self.place is None else f"{self.file}:{self.place.line}:{self.place.column}"
        return ": ".join(filter(None, (where, dotted(self.path), self.sentence)))


def problem_json(problem: Problem) -> dict[str, object]:
    """A problem as a JSON object: `file`, `line` and `column` where known, `key`, `sentence`."""
    place = {"line": problem.place.line, "column": problem.place.column} if problem.place is not None else {}
    return {"file": problem.file, **place, "key": dotted(problem.path), "sentence": problem.sentence}


@dataclass(frozen=True, slots=True)
class RefusedReload:
    """A configuration that was read and not put in force. `since` is the Unix time, in seconds, of the first refusal
    after the configuration in force was last confirmed; `problems` are those of the latest."""

    since: float
    problems: tuple[Problem, ...]


class ConfigurationError(Exception):
    """Every problem of a configuration, in the order of the file.

    `files` are the files that were read, where known: a change of one may mend a problem.
    """

    def __init__(self, problems: list[Problem], files: Collection[PurePath] = ()) -> None:
        self.files = files
        self.problems = sorted(problems, key=lambda problem: problem.place or START)
        super().__init__("\n".join(map(str, self.problems)))


def dotted(path: Path) -> str:
    """A path as text, `mcpServers.github.args.0`; a key with a dot or a space is quoted."""
    return ".".join(_quoted(key) for key in path)


def _quoted(key: PathKey) -> str:
    return str(key) if isinstance(key, int) or re.fullmatch(r"[\w-]+", key) else json.dumps(key, ensure_ascii=False)
