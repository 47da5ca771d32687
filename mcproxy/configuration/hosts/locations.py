"""Tables of hosts (Claude, Cursor, ...): their files on each system, where servers stand in them, and in which form.

Facts about other programs. Reads and writes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from mcproxy.configuration.documents.tree import Node
from mcproxy.configuration.hosts import references
from mcproxy.configuration.hosts.references import HostSyntax


@dataclass(frozen=True, slots=True)
class Host:
    """One host. Paths begin with `{home}`, `{config}` (XDG), `{programs}` (the system's folder for settings)
    or `{code}` (VS Code's).
    """

    title: str
    servers: tuple[str, ...] = ("mcpServers",)
    """The keys down to its servers."""
    deeper: str | None = None
    """A key inside these that holds the servers in files of newer versions of the host."""
    user: str = ""
    """The file of the user."""
    project: str | None = None
    """The file of a project, relative to its folder."""
    windows: str | None = None
    """The user's file on Windows, if it is another."""
    url: str | None = "url"
    """The key of a server's URL; None if the host only starts programs."""
    headers: str = "headers"
    """The key of a server's headers."""
    http: tuple[tuple[str, object], ...] = ()
    """Further members of a server over HTTP."""
    stdio: tuple[tuple[str, object], ...] = ()
    """Further members of a server that is a program."""
    command: str = "command"
    """The key of the program."""
    one_list: bool = False
    """Whether program and arguments are one list."""
    env: str = "env"
    """The key of the program's environment variables."""
    token_variable: str | None = None
    """The key that names the environment variable of a bearer token, where there is one."""
    header_variables: str | None = None
    """The key of headers whose values are names of environment variables, where there is one."""
    variable: str | None = "${%s}"
    """How a value refers to an environment variable, with `%s` for its name; None where it cannot."""
    references: HostSyntax = references.BRACES
    """The references that the host expands in its file."""
    more: tuple[str, ...] = ()
    """Further files of the user, all of which `import` reads if they exist."""
    restart: str = "restart it, or reload its servers"
    """How to make the host read its file again."""


HOSTS: Final[Mapping[str, Host]] = {
    "antigravity": Host(
        "Antigravity",
        user="{home}/.gemini/config/mcp_config.json",
        project=".agents/mcp_config.json",
        url="serverUrl",
        more=("{home}/.gemini/antigravity/mcp_config.json",),
        restart="refresh its list of servers, or start a new session",
    ),
    "claude-code": Host(
        "Claude Code",
        user="{home}/.claude.json",
        project=".mcp.json",
        http=(("type", "http"),),
        stdio=(("type", "stdio"),),
        restart="start a new session; /mcp shows it",
        references=references.CLAUDE_CODE,
    ),
    "claude-desktop": Host(
        "Claude Desktop",
        user="{programs}/Claude/claude_desktop_config.json",
        url=None,
        variable=None,
        restart="quit it whole, and start it again",
        references=references.LITERAL,
    ),
    "cline": Host(
        "Cline",
        user="{home}/.cline/data/settings/cline_mcp_settings.json",
        http=(("type", "streamableHttp"),),
        variable="${env:%s}",
        more=("{code}/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",),
        references=references.CLINE,
    ),
    "codex": Host(
        "Codex",
        ("mcp_servers",),
        user="{home}/.codex/config.toml",
        project=".codex/config.toml",
        headers="http_headers",
        token_variable="bearer_token_env_var",
        header_variables="env_http_headers",
        variable=None,
        restart="start a new session; /mcp shows it",
        references=references.LITERAL,
    ),
    "continue": Host(
        "Continue",
        user="{home}/.continue/mcpServers/mcproxy.json",
        project=".continue/mcpServers/mcproxy.json",
        http=(("type", "streamable-http"),),
        variable="${{ secrets.%s }}",
        more=("{home}/.continue/config.yaml",),
        references=references.CONTINUE,
    ),
    "copilot": Host(
        "Copilot CLI",
        user="{home}/.copilot/mcp-config.json",
        project=".mcp.json",
        http=(("type", "http"), ("tools", ["*"])),
        stdio=(("type", "local"), ("tools", ["*"])),
        restart="start a new session; /mcp shows it",
        references=references.COPILOT,
    ),
    "cursor": Host(
        "Cursor",
        user="{home}/.cursor/mcp.json",
        project=".cursor/mcp.json",
        variable="${env:%s}",
        restart="switch it on in Settings, MCP",
        references=references.EDITOR,
    ),
    "gemini": Host(
        "Gemini CLI",
        user="{home}/.gemini/settings.json",
        project=".gemini/settings.json",
        url="httpUrl",
        variable="$%s",
        restart="start a new session; /mcp shows it",
        references=references.GEMINI,
    ),
    "goose": Host(
        "Goose",
        ("extensions",),
        user="{config}/goose/config.yaml",
        windows="{programs}/Block/goose/config/config.yaml",
        url="uri",
        http=(("type", "streamable_http"), ("name", "mcproxy"), ("enabled", True), ("timeout", 300)),
        stdio=(("type", "stdio"), ("name", "mcproxy"), ("enabled", True), ("timeout", 300)),
        command="cmd",
        env="envs",
        restart="start a new session",
        references=references.GOOSE,
    ),
    "opencode": Host(
        "OpenCode",
        ("mcp",),
        deeper="servers",
        user="{config}/opencode/opencode.json",
        project="opencode.json",
        http=(("type", "remote"),),
        stdio=(("type", "local"),),
        one_list=True,
        env="environment",
        variable="{env:%s}",
        more=("{config}/opencode/opencode.jsonc",),
        restart="start a new session",
        references=references.OPENCODE,
    ),
    "vscode": Host(
        "VS Code",
        ("servers",),
        user="{code}/mcp.json",
        project=".vscode/mcp.json",
        http=(("type", "http"),),
        stdio=(("type", "stdio"),),
        variable="${env:%s}",
        more=("{code}/settings.json",),
        restart="start it in the file, or with MCP: List Servers",
        references=references.VSCODE,
    ),
    "windsurf": Host(
        "Windsurf",
        user="{home}/.codeium/windsurf/mcp_config.json",
        url="serverUrl",
        variable="${env:%s}",
        restart="refresh its list of servers",
        references=references.WINDSURF,
    ),
    "zed": Host(
        "Zed",
        ("context_servers",),
        user="{config}/zed/settings.json",
        windows="{programs}/Zed/settings.json",
        project=".zed/settings.json",
        stdio=(("source", "custom"),),
        variable=None,
        restart="it takes the change over by itself",
        references=references.LITERAL,
    ),
}

ALIASES: Final = {"claude": "claude-desktop"}
"""Other names of hosts."""


def host_named(name: str) -> Host | None:
    """The host of a name or an alias."""
    return HOSTS.get(ALIASES.get(name, name))


_BEGINNINGS: Final = {"home": "", "config": "", "programs": "", "code": "Code/User"}
"""The parts of the folders in the templates that are the same on every machine."""


def host_of(path: Path) -> Host | None:
    """The host whose file this is by its folder and name, or by its name if no other host has a file of that name."""
    parts = path.absolute().parts
    found = [(len(ends), host) for host in HOSTS.values() for ends in _endings(host) if parts[-len(ends) :] == ends]
    if found:
        return max(found, key=lambda match: match[0])[1]
    named = {id(host): host for host in HOSTS.values() if any(ends[-1] == path.name for ends in _endings(host))}
    return next(iter(named.values())) if len(named) == 1 else None


def syntax_of(path: Path, document: Node) -> HostSyntax:
    """The references of the host whose file this is, by its path or else by its form."""
    if (host := host_of(path)) is not None:
        return host.references
    return references.VSCODE if "servers" in document.members else references.BRACES


def _endings(host: Host) -> Iterator[tuple[str, ...]]:
    """The last parts of the paths of a host's files."""
    for template in (host.user, host.windows, host.project, *host.more):
        if template:
            yield PurePosixPath(template.format_map(_BEGINNINGS).lstrip("/")).parts


@dataclass(frozen=True, slots=True)
class Machine:
    """Where programs keep their settings here: on Linux, macOS (`darwin`) or Windows (`win32`)."""

    environ: Mapping[str, str]
    platform: str

    @classmethod
    def this(cls, environ: Mapping[str, str] = os.environ) -> Machine:
        """The machine that this process runs on."""
        return cls(environ, sys.platform)

    @property
    def _folders(self) -> dict[str, str]:
        home = Path(self.environ.get("HOME") or self.environ.get("USERPROFILE") or Path.home())
        config = Path(self.environ.get("XDG_CONFIG_HOME") or home / ".config")
        match self.platform:
            case "darwin":
                programs = home / "Library" / "Application Support"
            case "win32":
                programs = Path(self.environ.get("APPDATA") or home / "AppData" / "Roaming")
            case _:
                programs = config
        code = programs / "Code" / "User"
        return {"home": str(home), "config": str(config), "programs": str(programs), "code": str(code)}

    def user_file(self, host: Host) -> Path:
        """The file in which the user's servers are."""
        return self._path(host.windows if self.platform == "win32" and host.windows else host.user)

    def files(self, host: Host, folder: Path) -> Sequence[Path]:
        """All files that may hold servers, the most specific last: the user's, and those of the project in `folder`."""
        project = [folder / host.project] if host.project is not None else []
        # In a home folder that is a project too, one file may be both.
        return list(dict.fromkeys([*map(self._path, host.more), self.user_file(host), *project]))

    def _path(self, template: str) -> Path:
        return Path(template.format_map(self._folders))
