"""Sentences of the documents that say something of the code: each is looked up there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from mcproxy.access.policy import Policy
from mcproxy.protocol.methods import METHODS
from tests.docs.diagrams import ROOT
from tests.sources import nodes_of, texts
from tests.system.works_with import NAMES

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
README = (ROOT / "README.md").read_text()


def modules() -> Mapping[str, Sequence[ast.AST]]:
    """The nodes of the package's modules, by their paths in it."""
    return {module: nodes_of(text) for module, text in texts().items()}


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_the_words_that_a_newcomer_is_told_to_change_are_asserted_by_the_twin_that_is_named() -> None:
    told = re.search(
        r"the words `(.+?)` in `(mcproxy/.+?\.py)`. The test that fails is its twin, `(.+?)`", one_line(CONTRIBUTING)
    )
    assert told is not None
    words, module, twin = told.groups()
    assert (ROOT / module).read_text().count(words) == 1
    assert words in (ROOT / twin).read_text()
    name = Path(module).relative_to("mcproxy")
    assert Path(twin) == Path("tests", name.parent, f"test_{name.name}")


def test_every_module_that_catches_all_exceptions_is_named_and_no_other() -> None:
    told = one_line(CONTRIBUTING).partition("`except Exception` stands in five modules")[2].partition("- Imports")[0]
    catching = {
        module
        for module, nodes in modules().items()
        for node in nodes
        if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) == "Exception")
    }
    assert set(re.findall(r"`([\w/]+\.py)`", told)) == catching
    assert len(catching) == 5


def constants_of_methods() -> frozenset[str]:
    """The constants whose value is the name of a method in the table."""
    assigned = [
        node
        for nodes in modules().values()
        for node in ast.iter_child_nodes(nodes[0])
        if isinstance(node, ast.Assign | ast.AnnAssign)
    ]
    return frozenset(
        target.id
        for node in assigned
        if isinstance(node.value, ast.Constant) and node.value.value in METHODS
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    )


def comparisons(nodes: Iterable[ast.AST], constants: Set[str]) -> Iterator[str]:
    """Where the name of a method is compared, as the source has it."""

    def names_one(node: ast.AST) -> bool:
        match node:
            case ast.Constant(value=value):
                return value in METHODS
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name in constants
            case ast.Tuple(elts=elements) | ast.Set(elts=elements) | ast.List(elts=elements):
                return any(names_one(element) for element in elements)
            case _:
                return False

    for node in nodes:
        match node:
            case ast.Compare(ops=[ast.Eq() | ast.NotEq(), *_]) if names_one(node.left) or names_one(
                node.comparators[0]
            ):
                yield ast.unparse(node)
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[collection]) if names_one(collection):
                yield ast.unparse(node)
            case ast.MatchValue(value=value) if names_one(value):
                yield f"case {ast.unparse(value)}"
            case _:
                pass


def test_no_code_compares_the_name_of_a_method_in_the_table() -> None:
    constants = constants_of_methods()
    compared = [f"{module}: {found}" for module, nodes in modules().items() for found in comparisons(nodes, constants)]
    assert compared == []


def test_a_comparison_with_the_name_of_a_method_is_found() -> None:
    source = (
        "method == 'tools/call'\nLISTEN != method\nmethod in ('ping', LISTEN)\n"
        "match method:\n    case 'ping':\n        pass\n"
        "method == 'notifications/progress'\nmethod in known\n'ping' in asked\n"
    )
    assert list(comparisons(nodes_of(source), {"LISTEN"})) == [
        "method == 'tools/call'",
        "LISTEN != method",
        "method in ('ping', LISTEN)",
        "case 'ping'",
    ]


def test_the_policy_is_asked_by_the_module_that_is_named_and_by_the_command_that_tests_it() -> None:
    page = (ROOT / "docs/explanation/security.md").read_text()
    decisions = set(re.findall(r"`Policy\.(\w+)`", page))
    assert decisions == {"verdict", "decide", "decide_listing"} <= vars(Policy).keys()
    asking = {
        module
        for module, nodes in modules().items()
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in decisions
        if ast.unparse(node.func.value).endswith("policy")
    }
    assert asking == {"gateway/listings/state.py", "cli/access/policy_cases.py"}
    assert "`gateway/listings/state.py`" in page


def test_the_modules_that_use_the_other_http_stack_are_named_and_no_other() -> None:
    page = one_line((ROOT / "docs/architecture.md").read_text())
    told = re.findall(r"`([\w/.]+)`", page.partition("aiohttp does what is rarer.")[2].partition("## ")[0])
    using = {module for module, nodes in modules().items() if "aiohttp" in imported(nodes)}
    assert {module for module in using if not any(Path(module).is_relative_to(name) for name in told)} == set()
    assert {name for name in told if not any(Path(module).is_relative_to(name) for module in using)} == set()


def imported(nodes: Sequence[ast.AST]) -> set[str]:
    """The names of the packages that a module imports anything of."""
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in whole | parts}


def test_the_readme_names_the_languages_whose_sdks_play() -> None:
    told = re.search(r"with SDKs for (.+?)\)", one_line(README))
    assert told is not None
    assert set(re.split(r", | and ", told[1])) == {name.split(",")[0] for name in NAMES.values()}
