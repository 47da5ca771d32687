"""One name, one meaning: no type's name and no public function's stands for two things in the package.

Methods are not judged: their class says what they are methods of, and one name is often one interface.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.sources import PACKAGE, parsed, texts

SHARED = {
    "Request": "HTTP's own word and JSON-RPC's: a reader tells them apart by `http.`",
    "Response": "HTTP's own word and JSON-RPC's: a reader tells them apart by `http.`",
    "main": "Python's own word for what a program runs: the command line, and the reaper of a child",
    "register": "adds the commands of a folder of `cli` to the command line",
    "routes": "the routes that a part brings to its HTTP server",
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


def functions_in(tree: ast.Module) -> Iterator[str]:
    """The public functions of a module, but for commands, whose names are those of the command line."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            decorators = [each.func for each in node.decorator_list if isinstance(each, ast.Call)]
            if not any(isinstance(each, ast.Attribute) and each.attr == "command" for each in decorators):
                yield node.name


def definitions(package: Path = PACKAGE) -> dict[str, list[str]]:
    """The modules that define each type and each public function, by its name."""
    found = defaultdict(list)
    for module, text in texts(package).items():
        tree = parsed(text)
        for name in {*types_in(tree), *functions_in(tree)}:
            found[name].append(module)
    return found


def test_no_name_has_two_meanings() -> None:
    twice = {name: where for name, where in definitions().items() if len(where) > 1 and name not in SHARED}
    assert not twice, "find another name for one of them, or say in SHARED why both are called so"


def test_names_that_may_be_shared_are_shared() -> None:
    found = definitions()
    assert [name for name in SHARED if len(found[name]) < 2] == []


def test_a_homonym_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Line: ...\n")
    (tmp_path / "other.py").write_text("Line = tuple[str, str]\nLIMIT = 3\n")
    assert definitions(tmp_path) == {"Line": ["one.py", "other.py"]}


def test_a_homonym_of_a_function_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def read() -> None: ...\ndef _own() -> None: ...\n")
    (tmp_path / "other.py").write_text("async def read() -> None: ...\ndef _own() -> None: ...\n")
    assert definitions(tmp_path) == {"read": ["one.py", "other.py"]}


def test_a_command_is_called_as_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "commands.py").write_text("@commands.command('explain')\ndef explain() -> None: ...\n")
    (tmp_path / "explaining.py").write_text("def explain() -> None: ...\n")
    assert definitions(tmp_path) == {"explain": ["explaining.py"]}
