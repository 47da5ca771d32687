"""Every error sentence of the package, as the source has it: values that are put into one are `…`.

A sentence is a text with a space in it that is an argument of an exception of ours, of one of `VALUES`, or of a
function with a parameter of `PARAMETERS`; there or by way of a local variable. In `settings`, where pydantic wants
them, ValueError counts as well; in `configuration`, a text that stands last in what a generator yields, or that a
function called a `fault` returns.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Final

from tests.sources import PACKAGE, nodes_of, texts

ANYTHING: Final = "…"

VALUES: Final = frozenset({"ErrorObject", "Finding", "Problem", "__init__"})
"""What is no exception, and made with a sentence all the same; and what an exception says of itself."""

PARAMETERS: Final = frozenset({"sentence", "why", "reason"})
"""What the functions that make errors call the sentence that they are given."""

FRAGMENTS: Final = frozenset({"all your"})
"""Texts that an exception makes a part of its sentence."""

CAUGHT: Final = frozenset({"Unsealable"})
"""Exceptions whose sentence nobody gets to see: who catches them says something else."""

BUILT_IN: Final = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)
)

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def sentences(package: Path = PACKAGE) -> Mapping[str, list[str]]:
    """The modules in which each sentence stands, by the sentence."""
    found: dict[str, list[str]] = defaultdict(list)
    modules = {module: nodes_of(text) for module, text in texts(package).items()}
    nodes = [node for found in modules.values() for node in found]
    errors = VALUES | makers(nodes) | exceptions(nodes) - CAUGHT
    for module, of_module in modules.items():
        shown = errors | {"ValueError"} if module.startswith("settings/") else errors
        constants = _assigned(ast.iter_child_nodes(of_module[0]))
        for function in (node for node in of_module if isinstance(node, (*_FUNCTIONS, ast.Module))):
            said = [*_in(function, shown, constants)]
            if module.startswith("configuration/"):
                said += _given_back(function)
            for sentence in said:
                if module not in found[sentence]:
                    found[sentence].append(module)
    return found


def makers(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """The functions that are given a sentence, by the name of the parameter."""
    functions = (node for node in nodes if isinstance(node, _FUNCTIONS))
    return frozenset(
        function.name
        for function in functions
        if any(argument.arg in PARAMETERS for argument in (*function.args.args, *function.args.kwonlyargs))
    )


def exceptions(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """The exceptions that modules define, by what they are made of, in as many steps as it takes."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for node in nodes
        if isinstance(node, ast.ClassDef)
    }
    found, before = set(BUILT_IN), set[str]()
    while found != before:
        before = set(found)
        found |= {name for name, parents in bases.items() if parents & found}
    return frozenset(found & bases.keys())


def _in(function: ast.AST, errors: Set[str], constants: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    own = list(_own_nodes(function))
    local = {**constants, **_assigned(own)}
    for node in own:
        if isinstance(node, ast.Call) and _name(node.func) in errors:
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                for text in _texts(argument, local):
                    if " " in text.strip(f" {ANYTHING}:") and text not in FRAGMENTS:
                        yield text


def _given_back(function: ast.AST) -> Iterator[str]:
    """The sentences that a function yields, each last in a tuple, or returns if its name says that it finds a fault."""
    own = list(_own_nodes(function))
    local = _assigned(own)
    for node in own:
        match node:
            case ast.Yield(value=ast.Tuple(elts=[_, *_, last])):
                yield from _sentences_of(last, local)
            case ast.Return(value=ast.Tuple(elts=[_, *_, last])) if "fault" in str(getattr(function, "name", "")):
                yield from _sentences_of(last, local)
            case ast.Return(value=ast.expr() as value) if "fault" in str(getattr(function, "name", "")):
                yield from _sentences_of(value, local)
            case _:
                pass


def _sentences_of(node: ast.expr, local: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Attribute(value=template, attr="format")):
            yield from (text.replace("{}", ANYTHING) for text in _texts(template, local))
        case _:
            yield from (text for text in _texts(node, local) if " " in text.strip(f" {ANYTHING}:"))


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """What each name is assigned, in order."""
    found = defaultdict[str, list[ast.expr]](list)
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found[target.id].append(node.value)
    return found


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Those of a function, without those of the functions inside of it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, _FUNCTIONS):
            yield child
            yield from _own_nodes(child)


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else str(getattr(function, "attr", ""))


def _texts(node: ast.expr, local: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(_part(value, local) for value in values)
        case ast.IfExp(body=body, orelse=other):
            yield from _texts(body, local)
            yield from _texts(other, local)
        case ast.Name(id=name) if name in local:
            yield from _texts_of(name, local)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            for head in _texts(left, local):
                yield from (head + tail for tail in _texts(right, local))
        case _:
            return


def _part(node: ast.expr, local: Mapping[str, list[ast.expr]]) -> str:
    """A piece of an f-string: what stands there, or the one text that a local variable in it has."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=ast.Name(id=name)) if len(texts := list(_texts_of(name, local))) == 1:
            return texts[0]
        case _:
            return ANYTHING


def _texts_of(name: str, local: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    for value in local.get(name, ()):
        yield from _texts(value, {})
