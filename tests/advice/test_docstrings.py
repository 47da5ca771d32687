"""What docstrings say is raised exists, and can come from there."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from tests.sources import PACKAGE, nodes_of, texts

RAISES = re.compile(r"\b[Rr]aises ((?:`?[A-Z]\w+`?(?:, or |, | or | and )?)+)")
KNOWN = {*vars(builtins), *vars(msgspec)}


def unreachable(package: Path) -> Iterator[str]:
    """Exceptions that a docstring names, and that neither its module, nor one that it imports, nor its folder has.

    Modules that are imported count with all that they import themselves: they may let it pass.
    """
    modules = {
        ".".join([package.name, *Path(path).with_suffix("").parts]).removesuffix(".__init__"): nodes_of(text)
        for path, text in texts(package).items()
    }
    imports = {module: imported_by(nodes) & modules.keys() for module, nodes in modules.items()}
    names = {module: set(names_in(nodes)) for module, nodes in modules.items()}
    for module, nodes in modules.items():
        named = [(node.lineno, name) for node in nodes for name in raised(node) if isinstance(node, ast.Constant)]
        if named:
            folder = module.rpartition(".")[0]
            beside = {other for other in modules if other.rpartition(".")[0] == folder}
            known = KNOWN.union(*(names[other] for other in closure(module, imports) | beside))
            yield from (f"{module}:{line}: {name}" for line, name in named if name not in known)


def raised(node: ast.AST) -> Iterator[str]:
    """The exceptions that a text says are raised."""
    match node:
        case ast.Constant(value=str(text)) if "aises" in text:
            for found in RAISES.finditer(" ".join(text.split())):
                yield from re.findall(r"[A-Z]\w+", found[1])
        case _:
            pass


def imported_by(nodes: Iterable[ast.AST]) -> set[str]:
    found = set[str]()
    for node in nodes:
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{alias.name}" for alias in names)}
            case _:
                pass
    return found


def names_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What a module defines or imports as a class, and what it uses of another."""
    for node in nodes:
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
    assert list(unreachable(PACKAGE)) == []


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
