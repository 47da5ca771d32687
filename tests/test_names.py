"""One name, one meaning: no type's name stands for two things in the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mcproxy"

SHARED = {
    "Request": "HTTP's own word and JSON-RPC's: a reader tells them apart by `http.`",
    "Response": "HTTP's own word and JSON-RPC's: a reader tells them apart by `http.`",
}
"""Names that may stand for two things, and why."""


def types_in(tree: ast.Module) -> Iterator[str]:
    """The classes and type aliases that a module defines, private ones too."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from (name for name in names if name.lstrip("_")[:1].isupper() and not name.isupper())


def definitions(package: Path = PACKAGE) -> dict[str, list[str]]:
    """The modules that define each type, by its name."""
    found = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for name in types_in(ast.parse(path.read_text())):
            found[name].append(str(path.relative_to(package)))
    return found


def test_no_name_of_a_type_has_two_meanings() -> None:
    twice = {name: where for name, where in definitions().items() if len(where) > 1 and name not in SHARED}
    assert not twice, "find another name for one of them, or say in SHARED why both are called so"


def test_names_that_may_be_shared_are_shared() -> None:
    found = definitions()
    assert [name for name in SHARED if len(found[name]) < 2] == []


def test_a_homonym_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Line: ...\n")
    (tmp_path / "other.py").write_text("Line = tuple[str, str]\nLIMIT = 3\n")
    assert definitions(tmp_path) == {"Line": ["one.py", "other.py"]}
