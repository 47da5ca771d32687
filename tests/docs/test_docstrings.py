"""What docstrings say is raised exists, and can come from there."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from tests.docs.diagrams import ROOT

RAISES = re.compile(r"\b[Rr]aises ((?:`?[A-Z]\w+`?(?:, or |, | or | and )?)+)")
KNOWN = {*vars(builtins), *vars(msgspec)}


def unreachable(package: Path) -> Iterator[str]:
    """Exceptions that a docstring names, and that neither its module, nor one that it imports, nor its folder has.

    Modules that are imported count with all that they import themselves: they may let it pass.
    """
    trees = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_text()
        )
        for path in sorted(package.rglob("*.py"))
    }
    imports = {module: imported_by(tree) & trees.keys() for module, tree in trees.items()}
    names = {module: set(names_in(tree)) for module, tree in trees.items()}
    for module, tree in trees.items():
        folder = module.rpartition(".")[0]
        beside = {other for other in trees if other.rpartition(".")[0] == folder}
        known = KNOWN.union(*(names[other] for other in closure(module, imports) | beside))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for found in RAISES.finditer(" ".join(node.value.split())):
                    for name in re.findall(r"[A-Z]\w+", found[1]):
                        if name not in known:
                            yield f"{module}:{node.lineno}: {name}"


def imported_by(tree: ast.AST) -> set[str]:
    found = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{alias.name}" for alias in names)}
            case _:
                pass
    return found


def names_in(tree: ast.AST) -> Iterator[str]:
    """What a module defines or imports as a class, and what it uses of another."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.Attribute(attr=name):
                yield name
            case ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name for alias in names)
            case _:
                pass


def closure(module: str, imports: Mapping[str, set[str]]) -> set[str]:
    reached, fresh = set[str](), {module}
    while fresh:
        reached |= fresh
        fresh = {other for each in fresh for other in imports[each]} - reached
    return reached


def test_every_exception_that_a_docstring_names_can_come_from_there() -> None:
    assert list(unreachable(ROOT / "mcproxy")) == []


def test_an_exception_that_cannot_come_from_there_is_found(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "deep").mkdir(parents=True)
    (package / "low.py").write_text("class Low(Exception): ...\n")
    (package / "deep" / "middle.py").write_text("from package.low import Low\nclass Near(Exception): ...\n")
    (package / "deep" / "high.py").write_text(
        "from package.deep import middle\n"
        "def f():\n    '''Raises Low, Near or High.'''\ndef g():\n    '''raises OSError'''\n"
    )
    (package / "other.py").write_text("def f():\n    '''Waits.\n\n    Raises\n    Near.\n    '''\n")
    assert list(unreachable(package)) == ["package.deep.high:3: High", "package.other:2: Near"]
