"""The stages that each call passes, as `gateway.pipeline` has them, for the page on the architecture."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.docs.diagrams import ROOT
from tests.sources import nodes_of


def stages(_: str) -> str:
    """The stages of the pipeline, the outermost first, each with its module and its docstring's first line."""
    package = ROOT / "mcproxy/gateway"
    lists = [node for node in ast.walk(_function(package / "pipeline.py", "build")) if isinstance(node, ast.List)]
    rows = []
    for stage in (node for listed in lists for node in listed.elts if not isinstance(node, ast.Starred)):
        called = stage.func if isinstance(stage, ast.Call) else stage
        assert isinstance(called, ast.Name)
        path, text = _stage(package, _given(package, called.id))
        name = path.relative_to(package.parent).as_posix()
        rows.append(f"| `{called.id}` | [`{name}`](../mcproxy/{name}) | {' '.join(text.split())} |")
    return "\n".join(["| stage | module | what it does |", "|---|---|---|", *rows])


def _function(path: Path, name: str) -> ast.FunctionDef:
    (found,) = (node for node in nodes_of(path.read_text()) if isinstance(node, ast.FunctionDef) and node.name == name)
    return found


def _given(package: Path, stage: str) -> str:
    """What `Gateway` calls the function that it gives to the pipeline as a stage."""
    for node in ast.walk(_function(package / "gateway.py", "_built")):
        if isinstance(node, ast.keyword) and node.arg == stage and isinstance(node.value, ast.Attribute):
            return node.value.attr
    return stage


def _stage(package: Path, name: str) -> tuple[Path, str]:
    """The file of the function that is or makes this stage, and its docstring's first line."""
    ((path, text),) = (
        (path, text.partition("\n\n")[0])
        for path in sorted(package.rglob("*.py"))
        for node in nodes_of(path.read_text())
        if isinstance(node, ast.FunctionDef) and node.name == name and node.returns is not None
        if ast.unparse(node.returns) in {"Stage", "Handler"} and (text := ast.get_docstring(node))
    )
    return path, text
