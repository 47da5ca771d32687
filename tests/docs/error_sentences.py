"""Every error sentence of the package, as the source has it: values that are put into one are `…`.

A sentence is a text with a space in it that is an argument of an exception of ours or of one of `VALUES`, there or by
way of a local variable. In `settings`, where pydantic wants them, ValueError counts as well.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Final

from tests.docs.diagrams import ROOT

ANYTHING: Final = "…"

VALUES: Final = frozenset({"ErrorObject", "Problem", "__init__"})
"""What is no exception, and made with a sentence all the same; and what an exception says of itself."""

FRAGMENTS: Final = frozenset({"all your"})
"""Texts that an exception makes a part of its sentence."""

CAUGHT: Final = frozenset({"Unsealable"})
"""Exceptions whose sentence nobody gets to see: who catches them says something else."""

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def sentences(package: Path = ROOT / "mcproxy") -> Mapping[str, list[str]]:
    """The modules in which each sentence stands, by the sentence."""
    found: dict[str, list[str]] = defaultdict(list)
    trees = {path: ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}
    errors = VALUES | exceptions(trees.values()) - CAUGHT
    for path, tree in trees.items():
        module = path.relative_to(package).as_posix()
        shown = errors | {"ValueError"} if module.startswith("settings/") else errors
        for function in (node for node in ast.walk(tree) if isinstance(node, (*_FUNCTIONS, ast.Module))):
            for sentence in _in(function, shown):
                if module not in found[sentence]:
                    found[sentence].append(module)
    return found


def exceptions(trees: Iterable[ast.Module]) -> frozenset[str]:
    """The exceptions that modules define, by what they are made of, in as many steps as it takes."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found, before = {"Exception"}, set[str]()
    while found != before:
        before = set(found)
        found |= {name for name, parents in bases.items() if parents & found}
    return frozenset(found & bases.keys())


def _in(function: ast.AST, errors: Set[str]) -> Iterator[str]:
    own = list(_own_nodes(function))
    local = {
        target.id: node.value
        for node in own
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in own:
        if isinstance(node, ast.Call) and _name(node.func) in errors:
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                for text in _texts(argument, local):
                    if " " in text.strip(f" {ANYTHING}:") and text not in FRAGMENTS:
                        yield text


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Those of a function, without those of the functions inside of it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, _FUNCTIONS):
            yield child
            yield from _own_nodes(child)


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else str(getattr(function, "attr", ""))


def _texts(node: ast.expr, local: Mapping[str, ast.expr]) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else ANYTHING for v in values)
        case ast.IfExp(body=body, orelse=other):
            yield from _texts(body, local)
            yield from _texts(other, local)
        case ast.Name(id=name) if name in local:
            yield from _texts(local[name], {})
        case _:
            return
