"""Pictures of the package's state machines: finds every module with a table, and draws it for Mermaid.

A state machine is a module's `TRANSITIONS`: by state, by event, the next state. Both are enums whose values are
phrases; the first state of its enum is the initial one, and a state without a way out is final. Where the value of a
state is a label of metrics, the phrase is the text below it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

from tests.sources import parsed

ROOT = Path(__file__).parents[2]
TABLE = "TRANSITIONS"

Table = Mapping[Enum, Mapping[Enum, Enum]]


def state_machines(package: Path = ROOT / "mcproxy") -> list[str]:
    """The names of all modules in `package` that define a table, in order."""
    files = sorted(path for path in package.rglob("*.py") if _defines_a_table(path.read_text()))
    return [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in files]


def _defines_a_table(text: str) -> bool:
    if TABLE not in text:
        return False  # each worker of the tests looks for the tables; to parse the whole package takes it seconds
    assigned = [node for node in parsed(text).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [
        target for node in assigned for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return any(isinstance(target, ast.Name) and target.id == TABLE for target in targets)


def table_of(module: ModuleType | str) -> Table:
    table: Table = getattr(import_module(module) if isinstance(module, str) else module, TABLE)
    return table


def states_of(table: Table) -> type[Enum]:
    """The enum of the states, by the table's first row."""
    return type(next(iter(table)))


def meanings(states: type[Enum]) -> Mapping[str, str]:
    """What each state means, as a phrase: the text below it in its enum, or its value where there is none."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(states)))
    found = {state.name: str(state.value) for state in states}
    for member, text in pairwise(next(node for node in tree.body if isinstance(node, ast.ClassDef)).body):
        match member, text:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(said))):
                whole = " ".join(said.split()).removesuffix(".")
                found[name] = whole[0].lower() + whole[1:]
            case _:
                pass
    return found


def finals_of(table: Table) -> list[Enum]:
    return [state for state in states_of(table) if not table.get(state)]


def diagram(module: ModuleType | str) -> str:
    """The module's table as a Mermaid `stateDiagram-v2`, without the fence around it; ends with a newline."""
    table = table_of(module)
    states = list(states_of(table))
    lines = [f"[*] --> {states[0].name}"]
    meant = meanings(type(states[0]))
    lines += [f"{state.name} : {text}" for state in states for text in (state.name, _escaped(meant[state.name]))]
    for state in states:
        lines += [
            f"{state.name} --> {after.name} : {_escaped(event.value)}" for event, after in table.get(state, {}).items()
        ]
    lines += [f"{state.name} --> [*]" for state in finals_of(table)]
    return "stateDiagram-v2\n" + "".join(f"    {line}\n" for line in lines)


def _escaped(phrase: str) -> str:
    """The phrase with Mermaid's own characters as its entities."""
    return "".join(f"#{ord(char)};" if char in "#:;<>{}" else char for char in phrase)
