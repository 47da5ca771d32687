"""How each host refers to variables, files and inputs in its own file, and the same in the syntax of our configuration.

A reference is rewritten and never resolved. Whatever a host takes literally, such as `${env:X}` in a file of
Claude Code, is escaped and stays literal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from mcproxy.configuration.documents.tree import Node

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_BRACES: Final = rf"\$\{{(?P<variable>{_NAME})(?::-(?P<default>[^{{}}]*))?\}}"
_BARE: Final = rf"\$(?P<bare>{_NAME})"
_ENV: Final = rf"\$\{{env:(?P<variable>{_NAME})\}}"
_FOLDERS: Final = r"\$\{(?P<named>userHome|workspaceFolder|workspaceFolderBasename|pathSeparator|/)\}"

RESERVED: Final = frozenset({"userHome", "workspaceFolder", "pathSeparator"})
"""Names that mean something else than a variable in our own syntax."""

_FOREIGN: Final = re.compile(r"\$\{(?:env|file|input):[^{}]*\}")
"""A reference of some host, which another takes literally: probably a mistake."""


class HostSyntax(msgspec.Struct, frozen=True):
    """The references of one host."""

    pattern: re.Pattern[str]
    """Has some of the groups `variable`, `default`, `bare`, `input`, `file` and `named`."""
    keys: frozenset[str] | None = None
    """The keys of a server in whose values the host expands references; None for all."""


def _syntax(*patterns: str, keys: str = "") -> HostSyntax:
    return HostSyntax(re.compile("|".join(patterns)), frozenset(keys.split()) or None)


LITERAL: Final = _syntax(r"(?!)")
"""Expands nothing: Claude Desktop, Codex, Zed."""
BRACES: Final = _syntax(_BRACES)
"""`${VAR}` and `${VAR:-default}`: Antigravity, and files of no known host."""
CLAUDE_CODE: Final = _syntax(_BRACES, keys="command args env url headers")
"""The same, in five places."""
EDITOR: Final = _syntax(_ENV, _FOLDERS)
"""`${env:VAR}` and names of folders: Cursor."""
VSCODE: Final = _syntax(_ENV, _FOLDERS, r"\$\{input:(?P<input>[^{}]+)\}")
"""The same and `${input:ID}`."""
CLINE: Final = _syntax(_ENV)
"""`${env:VAR}`."""
WINDSURF: Final = _syntax(_ENV, r"\$\{file:(?P<file>[^{}]+)\}")
"""`${env:VAR}` and `${file:PATH}`."""
GEMINI: Final = _syntax(_BRACES, _BARE)
"""`$VAR`, `${VAR}` and `${VAR:-default}`."""
COPILOT: Final = _syntax(_BRACES, _BARE, keys="env headers")
"""The same, in two places."""
GOOSE: Final = _syntax(rf"\$\{{\s*(?P<variable>{_NAME})\s*\}}", _BARE, keys="headers uri")
"""`$VAR` and `${ VAR }` in what it sends over HTTP."""
OPENCODE: Final = _syntax(rf"\{{env:(?P<variable>{_NAME})\}}", r"\{file:(?P<file>[^{}]+)\}")
"""`{env:VAR}` and `{file:PATH}`."""
CONTINUE: Final = _syntax(rf"\$\{{\{{\s*secrets\.(?P<variable>{_NAME})\s*\}}\}}")
"""`${{ secrets.VAR }}`."""


class Rewriting(msgspec.Struct, frozen=True):
    """Rewrites the texts of one host's file in our syntax."""

    syntax: HostSyntax
    folder: Path
    """The folder of the file, absolute."""
    input: Callable[[str], str] = "${{input:{}}}".format
    """The reference, in our syntax, to the value of an input by its id."""

    def server(self, entry: Node) -> Node:
        """One server of the file."""
        if not isinstance(entry.value, dict):
            return self.literal(entry)
        keys = self.syntax.keys
        members = {
            key: self.texts(member) if keys is None or key in keys else self.literal(member)
            for key, member in entry.value.items()
        }
        return replace(entry, value=members)

    def texts(self, node: Node) -> Node:
        """All texts of a value, with their references."""
        return changed_texts(node, self.text)

    def literal(self, node: Node) -> Node:
        """All texts of a value in which the host expands nothing."""
        return changed_texts(node, escaped)

    def text(self, text: str) -> str:
        """One text."""
        written, plain, end = "", "", 0
        for match in self.syntax.pattern.finditer(text):
            plain += text[end : match.start()]
            end = match.end()
            groups = match.groupdict()
            if groups.get("named"):
                plain += self._named(groups["named"])
                continue
            written, plain = written + before_reference(plain) + self._reference(groups), ""
        return written + escaped(plain + text[end:])

    def _reference(self, groups: dict[str, str | None]) -> str:
        if (name := groups.get("input")) is not None:
            return self.input(name)
        if (path := groups.get("file")) is not None:
            absolute = path if path.startswith("~") else str(self.folder / path)
            return f"${{file:{absolute}}}"
        name = groups.get("variable") or groups["bare"]
        default = groups.get("default")
        return reference(str(name)) if default is None else f"{reference(str(name))[:-1]}:-{default}}}"

    def _named(self, name: str | None) -> str:
        match name:
            case "userHome":
                return str(Path.home())
            case "workspaceFolder":
                return str(workspace_of(self.folder))
            case "workspaceFolderBasename":
                return workspace_of(self.folder).name
            case _:
                return os.sep


class Origin(msgspec.Struct, frozen=True):
    """Where servers come from."""

    place: Path
    """The folder of the file, absolute."""
    syntax: HostSyntax | None = None
    """The references of the host; None if the host is not known, and its file's form tells."""
    input: Callable[[str], str] = "${{input:{}}}".format

    def rewriting(self, usual: HostSyntax) -> Rewriting:
        """How to rewrite a file in a form whose hosts usually have these references."""
        return Rewriting(self.syntax or usual, self.place, self.input)


def workspace_of(folder: Path) -> Path:
    """The folder of the project that has a host's file in `folder`; hosts start servers in it."""
    return folder.parent if folder.name.startswith(".") else folder


def reference(variable: str) -> str:
    """The reference to an environment variable."""
    return f"${{env:{variable}}}" if variable in RESERVED else f"${{{variable}}}"


def escaped(text: str) -> str:
    """A literal text, so that it has no reference in our syntax."""
    return text.replace("${", "$${")


def before_reference(text: str) -> str:
    """A literal text in front of a reference, which a dollar sign at its end would escape."""
    start = text.rstrip("$")
    return escaped(start) + (f"${{:-{text[len(start) :]}}}" if start != text else "")


def changed_texts(node: Node, change: Callable[[str], str]) -> Node:
    """The tree with every text changed."""
    if isinstance(node.value, dict):
        return replace(node, value={key: changed_texts(member, change) for key, member in node.value.items()})
    if isinstance(node.value, list):
        return replace(node, value=[changed_texts(item, change) for item in node.value])
    if isinstance(node.value, str):
        text = change(node.value)
        return replace(node, value=text, text=text)
    return node


def foreign_references(node: Node) -> Iterator[tuple[Node, str]]:
    """Texts that are literal and look like another host's references, in a tree in our syntax."""
    if isinstance(node.value, dict):
        for member in node.value.values():
            yield from foreign_references(member)
    elif isinstance(node.value, list):
        for item in node.value:
            yield from foreign_references(item)
    elif isinstance(node.value, str):
        for match in _FOREIGN.finditer(node.value):
            if node.value[: match.start()].endswith("$"):
                yield node, match[0]
