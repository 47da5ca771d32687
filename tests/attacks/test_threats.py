"""The table of deploy/THREATS.md names tests that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = (TESTS.parent / "deploy" / "THREATS.md").read_text()


def rows() -> list[list[str]]:
    lines = [line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith("| threat |")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_each_threat_is_held_by_a_test_that_exists() -> None:
    assert len(rows()) > 40
    for row in rows():
        assert len(row) == 3, row
        named = [re.fullmatch(r"`([\w/]+\.py)::(\w+)`", test) for test in row[2].split("; ")]
        for found in named:
            assert found is not None, row
            tree = ast.parse((TESTS / found[1]).read_text())
            names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert found[2] in names, row
