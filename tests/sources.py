"""Source code as syntax trees, each text parsed once in a process however many tests read it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1] / "mcproxy"


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a module's text. It is shared: copy what you change."""
    return ast.parse(text)


@cache
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """Every node of a module's text, those outside before those inside."""
    return tuple(ast.walk(parsed(text)))


def texts(package: Path = PACKAGE) -> Mapping[str, str]:
    """The text of each module below a package, by its path there, in order."""
    return {path.relative_to(package).as_posix(): path.read_text() for path in sorted(package.rglob("*.py"))}
