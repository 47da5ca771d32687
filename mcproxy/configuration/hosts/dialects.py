"""The servers in a host's file, in whichever form the host writes them, as entries of `mcpServers`.

A form is recognised by its keys, not by the file's name. Keys that cannot be carried over are left out, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from mcproxy.configuration.documents.tree import Node
from mcproxy.configuration.hosts.references import (
    BRACES,
    CONTINUE,
    GOOSE,
    LITERAL,
    OPENCODE,
    VSCODE,
    HostSyntax,
    Origin,
    Rewriting,
    reference,
)
from mcproxy.configuration.hosts.translation import SANDBOX, SERVER_MAPS, flattened

_NONE: Final = Node(None)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(slots=True)
class HostServer:
    """One server of a host's file, with the keys of `mcpServers`, and what could not be carried over."""

    name: str
    entry: Node
    notes: list[str] = field(default_factory=list)

    @property
    def members(self) -> dict[str, Node]:
        """Its keys, as a mapping that may be changed."""
        return self.entry.members

    def rename(self, keys: Mapping[str, str]) -> None:
        """Gives keys of the host ours."""
        members = {keys.get(key, key): node for key, node in self.members.items()}
        self.entry = replace(self.entry, value=members)

    def take(self, key: str) -> Node | None:
        """A member, which is no longer there afterwards."""
        return self.members.pop(key, None)

    def leave_out(self, key: str, because: str) -> None:
        """Removes a key, and notes the reason; does nothing if there is no such key."""
        if self.take(key) is not None:
            self.notes.append(f"`{key}` was left out: {because}")

    def refer(self, key: str, variables: Mapping[str, Node], before: str = "") -> None:
        """Adds references to variables of the environment, by their names, to a mapping such as `env`."""
        known = self.members.get(key, replace(self.entry, value={}))
        added: dict[str, Node] = {}
        for name, variable in variables.items():
            if _VARIABLE.fullmatch(variable.text):
                text = before + reference(variable.text)
                added[name] = replace(self.entry, value=text, text=text)
            else:
                self.notes.append(f"`{key}.{name}` was left out: {variable.text!r} is not the name of a variable")
        self.members[key] = replace(known, value={**known.members, **added})


_Translate = Callable[[HostServer], bool | None]
"""Gives a server our keys; returns False if it is not one that we can run."""


def host_servers(document: Node, folder: Path, origin: Origin) -> Iterator[HostServer]:
    """Every server of a host's file, with its references in our syntax.

    Of Claude Code's own file also those of the project in `folder`.
    """

    def mapped(servers: Node, translate: _Translate, usual: HostSyntax) -> Iterator[HostServer]:
        return _mapped(servers, translate, origin.rewriting(usual))

    projects = document.members.get("projects", _NONE)
    for holder in (document, projects.members.get(str(folder.absolute()), _NONE)):
        for key in SERVER_MAPS:
            yield from mapped(holder.members.get(key, _NONE), _unchanged, VSCODE if key == "servers" else BRACES)
    yield from _listed(document.members.get("mcpServers", _NONE), origin.rewriting(CONTINUE))
    yield from mapped(document.members.get("mcp_servers", _NONE), _codex, LITERAL)
    yield from mapped(document.members.get("context_servers", _NONE), _zed, LITERAL)
    yield from mapped(document.members.get("extensions", _NONE), _goose, GOOSE)
    mcp = document.members.get("mcp", _NONE)
    for name, entry in mcp.members.get("servers", _NONE).members.items():
        kind = entry.members.get("type", _NONE).value
        if kind in {"local", "remote"}:
            yield from mapped(replace(mcp, value={name: entry}), _opencode, OPENCODE)
        else:
            yield from mapped(replace(mcp, value={name: entry}), _unchanged, VSCODE)
    rest = {key: entry for key, entry in mcp.members.items() if key != "servers"}
    yield from mapped(replace(mcp, value=rest), _opencode, OPENCODE)


def other_projects(document: Node, folder: Path) -> list[str]:
    """The folders of Claude Code's projects, other than `folder`, that have servers of their own."""
    projects = document.members.get("projects", _NONE).members
    held = (name for name, project in projects.items() if project.members.get(SERVER_MAPS[0], _NONE).members)
    return [name for name in held if name != str(folder.absolute())]


def _mapped(servers: Node, translate: _Translate, rewriting: Rewriting) -> Iterator[HostServer]:
    for name, entry in servers.members.items():
        if isinstance(entry.value, dict):
            server = HostServer(name, rewriting.server(entry))
            if translate(server) is not False:
                yield server


def _listed(servers: Node, rewriting: Rewriting) -> Iterator[HostServer]:
    """Continue's servers: a list, each with its name in it."""
    for entry in servers.value if isinstance(servers.value, list) else ():
        if not isinstance(entry.value, dict):
            continue
        server = HostServer("", rewriting.server(entry))
        name = server.take("name")
        options = server.take("requestOptions")
        if options is not None and "headers" in options.members:
            server.members["headers"] = options.members["headers"]
        if name is not None and isinstance(name.value, str):
            server.name = name.value
            yield server


def _unchanged(server: HostServer) -> None:
    """Claude, Cursor, VS Code and others: `translation` knows their keys."""
    server.entry = flattened(server.entry)
    if (sandboxed := server.members.get(SANDBOX)) is not None and sandboxed.value is True:
        server.members["enabled"] = replace(sandboxed, value=False, text="false")
        server.take("disabled")
        server.notes.append(
            "is disabled: its host ran it in a sandbox, and mcproxy does not; enable it if you trust it"
        )


def _codex(server: HostServer) -> None:
    server.rename({"http_headers": "headers", "enabled_tools": "includeTools", "disabled_tools": "excludeTools"})
    if (variable := server.take("bearer_token_env_var")) is not None:
        server.refer("headers", {"Authorization": variable}, "Bearer ")
    if (variables := server.take("env_http_headers")) is not None:
        server.refer("headers", variables.members)
    if (passed := server.take("env_vars")) is not None and isinstance(passed.value, list):
        server.refer("env", {node.text: node for node in passed.value if isinstance(node.value, str)})
    if (seconds := server.take("startup_timeout_sec")) is not None:
        server.members["timeouts"] = replace(seconds, value={"connect": seconds})
    server.leave_out("tool_timeout_sec", "`timeouts.idle` and `timeouts.total` are the like")


def _zed(server: HostServer) -> bool:
    """A server of an extension of Zed's is started by the extension: it has no command."""
    command = server.members.get("command", _NONE)
    if command.members:
        server.take("command")
        server.entry = replace(server.entry, value={**server.members, **command.members})
        server.rename({"path": "command"})
    server.take("source")
    server.leave_out("settings", "they are for an extension of Zed's")
    return "command" in server.members or "url" in server.members


def _goose(server: HostServer) -> bool:
    """Goose's extensions are its own (`builtin`, `platform`, `frontend`, `inline_python`) or servers."""
    kind = server.members.get("type", _NONE).text
    server.rename({"cmd": "command", "envs": "env", "uri": "url"})
    if (secrets := server.take("env_keys")) is not None and isinstance(secrets.value, list):
        server.refer("env", {node.text: node for node in secrets.value if isinstance(node.value, str)})
    for key in ("name", "bundled", "available_tools", "display_name"):
        server.take(key)
    return kind in {"stdio", "sse", "streamable_http"}


def _opencode(server: HostServer) -> None:
    server.rename({"environment": "env"})
    command = server.members.get("command", _NONE)
    if isinstance(command.value, list) and command.value:
        program, *arguments = command.value
        server.members["command"] = program
        server.members["args"] = replace(command, value=arguments)
    server.take("type")
