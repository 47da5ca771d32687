"""The parts of the documents that are made from the code: each stands between two comments of its page.

`make docs` writes them anew (`python -m tests.docs`); a test holds the committed pages to what this makes. A block
begins with `<!-- generated: NAME ARGUMENT -->` and ends with `<!-- end -->`; NAME is a function of `BLOCKS`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final

import typer

from mcproxy.cli.commands import commands
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.hosts import translation
from mcproxy.configuration.hosts.locations import HOSTS, Machine
from mcproxy.configuration.schema import SERVER, schema
from mcproxy.settings import Proxy, UpstreamSettings
from mcproxy.settings.section import Reload, parse_quantity
from tests.deploy.metrics_table import HEAD as METRICS_HEAD
from tests.deploy.metrics_table import rows as metric_rows
from tests.docs import decoders
from tests.docs.diagrams import ROOT, diagram, meanings, state_machines, states_of, table_of
from tests.docs.entered_files import mostly
from tests.docs.stages import stages
from tests.sources import parsed
from tests.system import works_with

BLOCK: Final = re.compile(r"(<!-- generated: ([\w-]+)(?: ([^\n]*?))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
DOCS: Final = ROOT / "docs"
TESTS: Final = ROOT / "tests"

Schema = Mapping[str, Any]


def pages() -> list[Path]:
    """Every document of the project, in order."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def blocks(text: str) -> list[tuple[str, str]]:
    """Name and argument of each block of a page."""
    return [(found[2], found[3] or "") for found in BLOCK.finditer(text)]


def rendered(text: str) -> str:
    """The page with each block as the code has it now."""
    return BLOCK.sub(_as_it_is_now, text)


def _as_it_is_now(found: re.Match[str]) -> str:
    begin, name, argument, _, end = found.groups()
    return f"{begin}\n{BLOCKS[name](argument or '').strip()}\n\n{end}"


# What the configuration can say.


def settings(_: str) -> str:
    """Each section of the configuration with its keys, from the JSON Schema."""
    whole = schema()
    return "\n".join(_sections(whole))


def _sections(whole: Schema) -> Iterator[str]:
    definitions = whole["$defs"]

    def section(title: str, name: str) -> Iterator[str]:
        definition = definitions[name]
        yield f"### `{title}`\n"
        if "description" in definition:
            yield f"{_prose(definition['description'])}\n"
        yield "| key | default | meaning |\n|---|---|---|"
        inner: list[tuple[str, str]] = []
        for key, member in definition["properties"].items():
            if name == SERVER and (key in translation.KEYS or key in translation.IGNORED):
                continue
            target, placeholder = reference_of(member)
            if target is not None:
                inner.append((f"{title}.{key}{placeholder}", target))
            below = f"[below](#{anchor(inner[-1][0])})" if target is not None else _default(member)
            yield f"| `{key}` | {below} | {_cell(member.get('description', ''))}{_choices(member)} |"
        yield ""
        for path, target in inner:
            yield from section(path, target)

    yield from section("mcpServers.NAME", SERVER)
    for key in ("proxy", "access", "endpoints", "admin", "cluster"):
        target, placeholder = reference_of(whole["properties"][key])
        assert target is not None
        yield from section(f"{key}{placeholder}", target)


def reference_of(member: Schema) -> tuple[str | None, str]:
    """The definition that a member holds, and how its path goes on: `.NAME` in a mapping, `[]` in a list."""
    if "$ref" in member:
        return str(member["$ref"]).rpartition("/")[2], ""
    for choice in member.get("anyOf", ()):
        if "$ref" in choice:
            return reference_of(choice)
    if "items" in member and (found := reference_of(member["items"]))[0]:
        return found[0], f"[]{found[1]}"
    for inner in (*member.get("patternProperties", {}).values(), member.get("additionalProperties")):
        if isinstance(inner, Mapping) and (found := reference_of(inner))[0]:
            return found[0], f".NAME{found[1]}"
    return None, ""


def _default(member: Schema) -> str:
    if "default" not in member:
        return "`{}`" if member.get("type") == "object" else "–"
    value = member["default"]
    if value is None:
        return "–"
    examples = member.get("examples", ())
    if isinstance(value, int) and "16MiB" in examples:
        value = _as_size(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return f"`{value:.10g}s`" if "30s" in examples else f"`{value}`"
    return f"`{json.dumps(value) if not isinstance(value, str) else value or '(empty)'}`"


def _as_size(value: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        whole = parse_quantity(f"1{unit}", "bytes")
        assert isinstance(whole, int)
        if value % whole == 0:
            return f"{value // whole}{unit}"
    return str(value)


def _choices(member: Schema) -> str:
    listed = member.get("enum") or member.get("items", {}).get("enum")
    return f" One of {', '.join(f'`{choice}`' for choice in listed)}." if listed else ""


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _sentence(text).replace("|", "\\|")


def host_keys(_: str) -> str:
    """The keys of other hosts' files that mean something here, and those that are passed over."""
    known = "\n".join(f"| `{key}` | {_cell(meaning)} |" for key, meaning in translation.KEYS.items())
    ignored = ", ".join(f"`{key}`" for key in sorted(translation.IGNORED))
    return f"| key | meaning here |\n|---|---|\n{known}\n\nPassed over, because they concern the host alone: {ignored}."


def hosts(_: str) -> str:
    """The hosts that `connect` and `import` know by name, and their files."""
    linux = Machine({"HOME": "~"}, "linux")
    rows = [
        f"| `{name}` | {host.title} | {', '.join(f'`{path}`' for path in linux.files(host, Path()))} |"
        for name, host in HOSTS.items()
    ]
    return "\n".join(["| name | host | files on Linux, the project's last |", "|---|---|---|", *rows])


def reload_table(_: str) -> str:
    """What becomes of a change of each key while the gateway runs."""
    servers = [key for key in UpstreamSettings.model_fields if key not in {"name", "enabled"}]
    classes = {key: Reload.of(UpstreamSettings.model_fields[key], Reload.RECONNECT) for key in servers}
    proxy = {key: Reload.of(field, Reload.VIEW) for key, field in Proxy.model_fields.items()}
    anew, adopted, restart = (
        ", ".join(f"`{key}`" for key in keys)
        for keys in (
            (key for key, found in classes.items() if found is Reload.RECONNECT),
            (key for key, found in classes.items() if found is not Reload.RECONNECT),
            (f"proxy.{key}" for key, found in proxy.items() if found is Reload.RESTART),
        )
    )
    rows = {
        f"a server's {anew}": "a new connection; the old one goes once its calls are over, or after "
        "`proxy.shutdown_grace`",
        f"a server's {adopted}": "in force at once, on the connection that is there; clients are sent `list_changed` "
        "where their lists changed",
        "`enabled: false`, or a server taken out": "its calls may end, then it is stopped; nothing revives it",
        "`access`, `endpoints`, and all else of `proxy`": "in force with the next request",
        f"{restart}, `admin` and `cluster`": "a restart; until then the old value stays in force, and the log says so",
    }
    return "\n".join(
        ["| changed | what happens |", "|---|---|", *(f"| {key} | {what} |" for key, what in rows.items())]
    )


# What the command line can do.


def command_table(_: str) -> str:
    """One line for each command."""
    rows = [
        f"| [`mcproxy {name}`](#{anchor(f'mcproxy {name}')}) | {_first_line(command)} |"
        for name, command in _commands()
    ]
    return "\n".join(["| command | what it does |", "|---|---|", *rows])


def command_pages(_: str) -> str:
    """A section for each command: its text, arguments and options."""
    return "\n\n".join(_command(name, command) for name, command in _commands())


def _commands() -> Iterator[tuple[str, Any]]:
    yield from _below("", typer.main.get_command(commands))


def exit_codes(_: str) -> str:
    """Each exit code with the text below it in its enum."""
    (enum,) = (
        node
        for node in ast.walk(ast.parse(inspect.getsource(ExitCode)))
        if isinstance(node, ast.ClassDef) and node.name == ExitCode.__name__
    )
    rows = []
    for member, text in zip(enum.body, enum.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            rows.append(f"| {ast.literal_eval(member.value)} | {_cell(str(text.value.value))} |")
    assert len(rows) == len(ExitCode)
    return "\n".join(["| exit code | meaning |", "|---:|---|", *rows])


@cache
def command_names() -> frozenset[str]:
    """As one types them, without `mcproxy`."""
    return frozenset(name for name, _ in _commands())


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from _below(f"{path} {name}".strip(), child)


def _command(name: str, command: Any) -> str:
    usage = [f"mcproxy {name}", *(_usage(parameter) for parameter in command.params if _is_argument(parameter))]
    lines = [f"### `mcproxy {name}`\n", f"{_prose(command.help)}\n", f"```text\n{' '.join(usage)} [OPTIONS]\n```"]
    rows = [_parameter(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        lines += ["\n| argument or option | meaning |\n|---|---|", *rows]
    return "\n".join(lines)


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _usage(parameter: Any) -> str:
    return str(parameter.name).upper()


def _parameter(parameter: Any) -> str:
    names = [_usage(parameter)] if _is_argument(parameter) else [*parameter.opts, *parameter.secondary_opts]
    kind = getattr(parameter, "bare_type", None)
    values = [choice.value for choice in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
    told = f" One of {', '.join(f'`{value}`' for value in values)}." if values else ""
    default = parameter.default
    shown = f" Default: `{default}`." if isinstance(default, str) and default else ""
    names_cell = ", ".join(f"`{name}`" for name in sorted(names, key=len))
    return f"| {names_cell} | {_cell(getattr(parameter, 'help', '') or '')}{told}{shown} |"


def _prose(text: str | None) -> str:
    return "\n\n".join(_sentence(part) for part in (text or "").split("\n\n"))


def _first_line(command: Any) -> str:
    return _cell((command.help or "").split("\n\n")[0])


def anchor(title: str) -> str:
    """What a heading is linked by, as GitHub and most site generators make it."""
    return re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")


# What it measures.


def metrics(_: str) -> str:
    """The table of `deploy/prometheus/METRICS.md`."""
    return "| name | type | labels | meaning |\n" + METRICS_HEAD + "\n".join(metric_rows())


def works_with_table(_: str) -> str:
    """Which SDKs' clients and servers the matrix of the system tests played with each other."""
    return works_with.table()


# What holds the requirements.


@cache
def by_requirement() -> Mapping[int, Mapping[str, tuple[str, ...]]]:
    """By number: by file below `tests/`, the tests whose name says that they hold it (`_rN_`)."""
    found: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in files_of_tests():
        for name in names_of_tests(path):
            for number in set(re.findall(r"(?<=_)r(\d+)(?=_)", name)):
                found[int(number)][str(path.relative_to(TESTS))].append(name)
    return {number: {file: tuple(names) for file, names in files.items()} for number, files in found.items()}


def files_of_tests() -> Iterator[Path]:
    yield from (path for path in sorted(TESTS.rglob("test_*.py")) if "node_modules" not in path.parts)


@cache
def names_of_tests(path: Path) -> tuple[str, ...]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text())
    return tuple(node.name for node in ast.walk(tree) if isinstance(node, functions) and node.name.startswith("test_"))


def held_by(argument: str) -> str:
    """The tests of a requirement, folded; `R18 FILE::TEST ...` names some that do not carry its number."""
    requirement, *named = argument.split()
    files = {file: list(names) for file, names in by_requirement().get(int(requirement[1:]), {}).items()}
    for name in named:
        file, _, test = name.partition("::")
        files.setdefault(file, []).append(test)
    count = sum(map(len, files.values()))
    summary = f"held by {count} test{'s' * (count > 1)} in {len(files)} file{'s' * (len(files) > 1)}"
    listed = "\n".join(
        f"- [{file}](../tests/{file}): {'; '.join(f'`{name}`' for name in names)}" for file, names in files.items()
    )
    return f"<details><summary>{summary}</summary>\n\n{listed}\n\n</details>"


# What states there are.


def state_diagrams(_: str) -> str:
    """Each state machine of the package: its module's first line, its picture, its events."""
    return "\n\n".join(_machine(module) for module in state_machines())


def _machine(module: str) -> str:
    path = Path(*module.split(".")).with_suffix(".py")
    states = states_of(table_of(module))
    first = _sentence((ast.get_docstring(parsed((ROOT / path).read_text())) or "").split("\n\n")[0])
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", states.__name__.removesuffix("State")).capitalize()
    rows = "\n".join(f"| `{name}` | {_cell(meaning)} |" for name, meaning in meanings(states).items())
    return (
        f"## {title}\n\n[`{path}`](../../{path}): {first}\n\n```mermaid\n{diagram(module).rstrip()}\n```\n\n"
        f"| state | meaning |\n|---|---|\n{rows}"
    )


# How the package is built.


LAYERS: Final = "Imports point down"
"""The name of import-linter's contract on the package's layers."""


def contracts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    return found


def layer_contract() -> list[list[str]]:
    """The package's layers from the top, each with its siblings."""
    (contract,) = (contract for contract in contracts() if contract["name"] == LAYERS)
    return [[name.strip().removeprefix("mcproxy.") for name in layer.split("|")] for layer in contract["layers"]]


def layers(_: str) -> str:
    """The layers of the package, and what else import-linter holds."""
    picture = "\n".join(" | ".join(layer) for layer in layer_contract())
    others = "\n".join(f"- {contract['name']}" for contract in contracts() if contract["name"] != LAYERS)
    return f"```text\n{picture}\n```\n\nBeside it import-linter holds:\n\n{others}"


def rooms(_: str) -> str:
    """Each package with the number of its modules and its docstring's first line."""
    rows = []
    for init in sorted((ROOT / "mcproxy").rglob("__init__.py")):
        folder = init.parent
        modules = [path for path in folder.glob("*.py") if path != init]
        first = _sentence((ast.get_docstring(parsed(init.read_text())) or "").split("\n\n")[0])
        name = folder.relative_to(ROOT).as_posix()
        rows.append(f"| [`{name}`](../{name}) | {len(modules)} | {_cell(first)} |")
    return "\n".join(["| folder | modules | what it holds |", "|---|---:|---|", *rows])


# Which way a message goes.


@cache
def entered_files() -> Mapping[str, Mapping[str, int]]:
    """By case, the files of the package, and how many of the repetitions enter each: takes some seconds."""
    command = [sys.executable, "-m", "tests.docs.entered_files", "--json"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=500)
    found: Mapping[str, Mapping[str, int]] = json.loads(done.stdout)
    return found


def way(case: str) -> str:
    """The files that one case enters, by folder."""
    files = mostly(entered_files()[case])
    folders: dict[str, list[str]] = defaultdict(list)
    for file in files:
        folder, _, name = file.rpartition("/")
        folders[folder].append(name.removesuffix(".py"))
    rows = "\n".join(
        f"| `{folder or 'mcproxy'}` | {', '.join(f'`{name}`' for name in names)} |" for folder, names in folders.items()
    )
    return f"{len(files)} files:\n\n| folder | modules |\n|---|---|\n{rows}"


BEFORE: Final = {
    "a call of the stateless era": 48,
    "a call of the handshake era": 44,
    "a parked elicitation": 56,
    "an update to three subscribers": 33,
    "a denied call": 32,
    "a reload": 55,
}
"""How many files each case entered at ff718f3."""


def ways(_: str) -> str:
    """How many files each case entered, and enters."""
    rows = [f"| {case} | {before} | {len(mostly(entered_files()[case]))} |" for case, before in BEFORE.items()]
    return "\n".join(["| case | before | now |", "|---|---:|---:|", *rows])


BLOCKS: Final[dict[str, Callable[[str], str]]] = {
    "settings": settings,
    "reload": reload_table,
    "host-keys": host_keys,
    "hosts": hosts,
    "command-table": command_table,
    "commands": command_pages,
    "exit-codes": exit_codes,
    "metrics": metrics,
    "tests": held_by,
    "state-machines": state_diagrams,
    "stages": stages,
    "layers": layers,
    "rooms": rooms,
    "way": way,
    "ways": ways,
    "works-with": works_with_table,
    "decoders": lambda _: decoders.table(),
}
