"""Expand the references in a configuration's texts: `${VAR}`, `${VAR:-default}`, `${env:VAR}`, `${file:/path}`, `$${`.

Also `${input:ID}`, `${userHome}`, `${workspaceFolder}`, `${pathSeparator}` and `${:-text}`. A missing variable or file
is a problem; no reference is left unexpanded silently. Collects the values, so that logs can be redacted.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from mcproxy.configuration.documents.tree import Node
from mcproxy.configuration.problems import PathKey, Problem

CALLER: Final = "caller."
"""The prefix of references to the caller of a call, which are filled in with each call (`catalog.arguments`)."""

MAX_FILE_BYTES: Final = 1024 * 1024
"""Largest size of a file named by `${file:...}` or `envFile`."""

_REFERENCE: Final = re.compile(r"\$(?P<escape>\$\{)|\$\{(?P<body>[^{}]*)\}|(?P<open>\$\{)")
_BODY: Final = re.compile(r"(?:(?P<scheme>env|file|input):)?(?P<name>.*?)(?::-(?P<default>.*))?", re.DOTALL)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_FOLDERS: Final = frozenset({"", "userHome", "workspaceFolder", "pathSeparator", "/"})
"""Names that are not variables."""

PUBLIC_VARIABLES: Final = frozenset({"HOME", "USER", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "HOSTNAME", "LANG"})
"""Variables whose values are no secrets: redacting them would make logs unreadable."""


class Missing(Exception):
    """A reference's variable or file is missing. The text says what to do and contains no value."""


class Expansion(msgspec.Struct):
    """Expands the values of one file; collects problems, warnings, secrets and the files that were read."""

    file: Path
    environ: Mapping[str, str]
    problems: list[Problem] = msgspec.field(default_factory=list)
    secrets: set[str] = msgspec.field(default_factory=set)
    files: set[Path] = msgspec.field(default_factory=set)
    """Files that were read or were missing."""
    host_file: bool = False
    """Whether the file is a host's own, whose references `hosts.references` has rewritten in our syntax."""
    warnings: list[Problem] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        self.files.add(self.file)

    def read(self, path: Path) -> str:
        """A small file's text. Raises Missing."""
        self.files.add(path)
        return read_text(path)

    def read_env_file(self, name: str) -> None:
        """Takes variables that the environment does not have from a file beside this one, where there is one."""
        path = self.folder / name
        self.files.add(path)
        if not path.is_file():
            return
        try:
            variables = parse_env_file(read_text(path))
        except Missing as missing:
            self.warnings.append(Problem(str(path), str(missing)))
            return
        if os.name == "posix" and path.stat().st_mode & 0o077 and variables:
            self.warnings.append(Problem(str(path), "others on this machine can read it: chmod 600"))
        self.environ = {**variables, **self.environ}

    @property
    def folder(self) -> Path:
        """The folder of the file that is expanded, absolute: relative paths in it start there."""
        return self.file.absolute().parent

    def apply(self, node: Node) -> Node:
        """The tree with every text expanded; a text with a problem stays as written."""
        if isinstance(node.value, dict):
            return replace(node, value={key: self.apply(member) for key, member in node.value.items()})
        if isinstance(node.value, list):
            return replace(node, value=[self.apply(item) for item in node.value])
        if isinstance(node.value, str) and "$" in node.value:
            return self._string(node, node.value)
        return node

    def _string(self, node: Node, text: str) -> Node:
        try:
            expanded = _REFERENCE.sub(partial(self._reference, node), text)
        except Missing as missing:
            self.problems.append(Problem(str(self.file), str(missing), node.place, node.path))
            return node
        return replace(node, value=expanded, text=expanded)

    def _reference(self, node: Node, match: re.Match[str]) -> str:
        groups = match.groupdict()
        if groups["escape"]:
            return "${"
        if groups["open"]:
            raise Missing("a ${ without its }, or with another brace before it; write $${ for a literal ${")
        if groups["body"].startswith(CALLER):
            return self._of_caller(node, match[0])
        body = _BODY.fullmatch(groups["body"])
        assert body is not None, "the pattern matches any text"
        match body["scheme"]:
            case "file":
                return self._secret(self.read(self.folder / Path(body["name"]).expanduser()).strip())
            case "input":
                return self._input(body["name"])
            case "env":
                return self._variable(body["name"], body["default"])
            case _:
                return self._named(body["name"], body["default"])

    def _of_caller(self, node: Node, text: str) -> str:
        """`text` unchanged, if it refers to the caller of each call. Raises Missing where there is no call."""
        if not is_argument(node.path):
            raise Missing(f"{text} differs with each call: use it only in `tools.overrides.TOOL.arguments`")
        return text

    def _named(self, name: str, default: str | None) -> str:
        match name:
            case "" if default is not None:
                return default
            case "userHome":
                return str(Path.home())
            case "workspaceFolder":
                return str(self.folder.parent if self.folder.name.startswith(".") else self.folder)
            case "pathSeparator" | "/":
                return os.sep
            case _:
                return self._variable(name, default)

    def _variable(self, name: str, default: str | None) -> str:
        if not _VARIABLE.fullmatch(name):
            raise Missing(f"${{{name}}} is no known reference; write $${{ for a literal ${{")
        value = self.environ.get(name)
        if value is not None:
            # Secrets that are mounted or piped often end with a line break, which no header may hold.
            value = value.rstrip("\r\n")
        # As in a shell, `:-` also stands in for an empty variable.
        if value or (value == "" and default is None):
            return value if name in PUBLIC_VARIABLES else self._secret(value)
        if default is None:
            place = "in the environment" if self.host_file else "in the environment or in `.env` beside this file"
            sentence = f"the environment variable {name} is not set: set it {place}, or write ${{{name}:-default}}"
            raise Missing(sentence)
        return default

    def _input(self, name: str) -> str:
        """VS Code prompts for inputs; here they are environment variables that nothing else uses."""
        variable = input_variable(name)
        value = self.environ.get(variable)
        if value is None:
            raise Missing(f"the input {name!r} cannot be prompted for here: set the environment variable {variable}")
        return self._secret(value.rstrip("\r\n"))

    def _secret(self, value: str) -> str:
        self.secrets.add(value)
        return value


def referred(value: object) -> Iterator[str]:
    """What the texts in a value refer to: names of environment variables, and files as `file:PATH`."""
    match value:
        case str():
            for match in _REFERENCE.finditer(value):
                body = _BODY.fullmatch(match["body"] or "")
                if body is None or body["name"] in _FOLDERS or value.startswith(CALLER, match.start() + 2):
                    continue
                scheme, name = body["scheme"], body["name"]
                yield input_variable(name) if scheme == "input" else f"file:{name}" if scheme == "file" else name
        case dict():
            for member in value.values():
                yield from referred(member)
        case list():
            for item in value:
                yield from referred(item)


def input_variable(name: str) -> str:
    """The variable for an input. Its prefix keeps a file from choosing one that the environment has for another use."""
    return "MCPROXY_INPUT_" + re.sub(r"\W", "_", name, flags=re.ASCII).upper()


def is_argument(path: Sequence[PathKey]) -> bool:
    """Whether a key is part of a tool's argument: a value there may refer to the caller."""
    return tuple(path[2:4]) == ("tools", "overrides") and tuple(path[5:6]) == ("arguments",)


def read_text(path: Path) -> str:
    """A small file's text. Raises Missing."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise Missing(f"there is no file {path}: make it, or correct the path") from error
    except OSError as error:
        raise Missing(f"cannot read {path}: {error.strerror or type(error).__name__}") from error
    except UnicodeDecodeError as error:
        raise Missing(f"cannot read {path}: it is not UTF-8; save it in that encoding") from error
    if len(data) > MAX_FILE_BYTES:
        raise Missing(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return text


def parse_env_file(text: str) -> dict[str, str]:
    """The variables of a dotenv file, as python-dotenv and Node read it; lines that are not of that form are skipped.

    References in values are not expanded: a password may hold `${`.
    """
    from dotenv.parser import parse_stream

    bindings = parse_stream(io.StringIO(text.removeprefix("\ufeff")))
    return {
        binding.key: binding.value
        for binding in bindings
        if binding.key is not None and binding.value is not None and _VARIABLE.fullmatch(binding.key)
    }
