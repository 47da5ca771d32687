"""Nothing is written twice in the package: no ten lines of code are a copy of others."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mcproxy"
LINES = 10
"""Lines in a row that make a copy, without empty ones, comments, docstrings and imports."""


def code_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that count, by their numbers, without their indentation."""
    skipped = set[int]()
    for node in ast.walk(ast.parse(text)):
        is_string = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_string or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(text.splitlines(), 1):
        if number not in skipped and (code := line.strip()) and not code.startswith("#"):
            yield number, code


def copies(package: Path, length: int = LINES) -> list[list[str]]:
    """The places that begin the same `length` lines, one group for each run of lines that was copied."""
    places = defaultdict[tuple[str, ...], list[tuple[Path, int, int]]](list)
    for path in sorted(package.rglob("*.py")):
        lines = list(code_lines(path.read_text()))
        for index in range(len(lines) - length + 1):
            window = lines[index : index + length]
            places[tuple(code for _, code in window)].append((path, index, window[0][0]))
    groups = [group for group in places.values() if len(group) > 1]
    starts = {(path, index) for group in groups for path, index, _ in group}
    begin = [group for group in groups if not all((path, index - 1) in starts for path, index, _ in group)]
    return [[f"{path.relative_to(package)}:{number}" for path, _, number in group] for group in begin]


def test_no_ten_lines_of_code_are_a_copy_of_others() -> None:
    assert copies(PACKAGE) == [], "say it once, where both may see it"


def test_a_copy_is_found_though_it_is_indented_and_commented(tmp_path: Path) -> None:
    body = [f"step_{number} = {number}" for number in range(LINES)]
    (tmp_path / "one.py").write_text('"""One."""\n\nimport os\n' + "\n".join(body))
    (tmp_path / "other.py").write_text("if True:\n" + "".join(f"    # why\n\n    {line}\n" for line in body))
    assert copies(tmp_path) == [["one.py:4", "other.py:4"]]
    (tmp_path / "other.py").write_text("\n".join(body[1:]))
    assert copies(tmp_path) == []
