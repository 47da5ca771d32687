"""Nothing is written twice in the package: no seven lines of code are a copy, and no body of a function."""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.sources import PACKAGE, nodes_of, texts

LINES: Final = 7
"""Lines in a row that make a copy, without empty ones, comments, docstrings and imports."""
NODES: Final = 12
"""Statements and expressions of a body that make a copy, without its docstring: some two lines."""
APART: Final = ("http/client/", "http/server/")
"""Rooms that import nothing of ours, nor each other: there is no place where they could say a thing once."""

Places = list[list[str]]
"""The places of each copy, as `file:line`."""


def code_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that count, by their numbers, without their indentation."""
    skipped = set[int]()
    for node in nodes_of(text):
        is_string = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_string or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(text.splitlines(), 1):
        if number not in skipped and (code := line.strip()) and not code.startswith("#"):
            yield number, code


def copies(package: Path, length: int = LINES) -> Places:
    """The places that begin the same `length` lines, one group for each run of lines that was copied."""
    places = defaultdict[tuple[str, ...], list[tuple[str, int, int]]](list)
    for name, text in texts(package).items():
        lines = list(code_lines(text))
        for index in range(len(lines) - length + 1):
            window = lines[index : index + length]
            places[tuple(code for _, code in window)].append((name, index, window[0][0]))
    groups = [group for group in places.values() if len(group) > 1]
    starts = {(name, index) for group in groups for name, index, _ in group}
    begin = [group for group in groups if not all((name, index - 1) in starts for name, index, _ in group)]
    return [[f"{name}:{number}" for name, _, number in group] for group in begin]


Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Renamed(ast.NodeTransformer):
    """Replaces the names that a function gives itself by their order, and drops annotations."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def give(self, name: str) -> str:
        return self.names.setdefault(name, str(len(self.names)))

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.give(node.arg), None)

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns, node.name = None, self.give(node.name)
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns, node.name = None, self.give(node.name)
        return self.generic_visit(node)


def shape(function: Function) -> tuple[int, str]:
    """How many nodes the body has, and the body with all names replaced that the function gives."""
    renamed = _Renamed()
    renamed.give(function.name)
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            renamed.give(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            renamed.give(node.id)
    body = copy.deepcopy(function.body)[ast.get_docstring(function) is not None :]
    size = sum(isinstance(node, ast.stmt | ast.expr) for statement in body for node in ast.walk(statement))
    return size, "\n".join(ast.dump(renamed.visit(statement)) for statement in body)


def same_bodies(package: Path, nodes: int = NODES) -> Places:
    """The functions that have a body of at least so many nodes in common, whatever its names."""
    places = defaultdict[str, list[str]](list)
    for name, text in texts(package).items():
        for node in nodes_of(text):
            if isinstance(node, Function):
                line = node.lineno
                size, body = shape(node)
                if size >= nodes:
                    places[body].append(f"{name}:{line}")
    return [group for group in places.values() if len(group) > 1]


def avoidable(groups: Places) -> Places:
    return [group for group in groups if not all(sum(p.startswith(room) for p in group) == 1 for room in APART)]


def test_no_seven_lines_of_code_are_a_copy_of_others() -> None:
    assert avoidable(copies(PACKAGE)) == [], "say it once, where both may see it"


def test_no_two_functions_have_the_same_body() -> None:
    assert avoidable(same_bodies(PACKAGE)) == [], "say it once, where both may see it"


def test_a_copy_is_found_though_it_is_indented_and_commented(tmp_path: Path) -> None:
    body = [f"step_{number} = {number}" for number in range(LINES)]
    (tmp_path / "one.py").write_text('"""One."""\n\nimport os\n' + "\n".join(body))
    (tmp_path / "other.py").write_text("if True:\n" + "".join(f"    # why\n\n    {line}\n" for line in body))
    assert copies(tmp_path) == [["one.py:4", "other.py:4"]]
    (tmp_path / "other.py").write_text("\n".join(body[1:]))
    assert copies(tmp_path) == []


def test_a_body_is_found_again_under_other_names(tmp_path: Path) -> None:
    first = (
        "def first(group: Group) -> Error:\n    error = group[0]\n    return first(error) if is_group(error) else error"
    )
    (tmp_path / "one.py").write_text(first)
    other = 'async def of(many):\n    """The first."""\n    it = many[0]\n    return of(it) if is_group(it) else it'
    (tmp_path / "other.py").write_text(other)
    assert same_bodies(tmp_path) == [["one.py:1", "other.py:1"]]
    (tmp_path / "other.py").write_text(other.replace("is_group", "is_list"))
    assert same_bodies(tmp_path) == []
