"""`mcproxy import`: a host's servers as a configuration of mcproxy, with secrets replaced by `${VARIABLES}`.

Tells which variables to set and never their values. Reads the host's files and writes nothing.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import yaml

from mcproxy.configuration.documents import Node
from mcproxy.configuration.expansion import HOST_REFERENCE
from mcproxy.configuration.hosts import translation
from mcproxy.configuration.loading import read_document
from mcproxy.configuration.problems import ConfigurationError, Problem

HEADER: Final = "# `mcproxy check --connect` validates this file and connects to its servers.\n"

_SECRET_NAME: Final = re.compile(
    r"(?i)key|token|secret|passw|pwd|auth|credential|cookie|session|signature|dsn|conn\w{0,32}str|(^|[-_])(pat|pass|jwt)$"
)
_NO_SECRET: Final = re.compile(r"(?i)true|false|yes|no|on|off|none|null|\d{1,6}|[a-z]{1,8}|")
_PATH: Final = re.compile(r"~?/|\.{1,2}/|[A-Za-z]:\\")
_TOKEN: Final = re.compile(r"ghp_|gho_|github_pat_|glpat-|sk-|xox[a-z]-|AKIA|AIza|eyJ|ntn_|hf_|npm_|pypi-")
_UUID: Final = re.compile(r"(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PASSWORD_IN_URL: Final = re.compile(r"://[^/@\s]*:[^/@\s]+@")
_FLAG: Final = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.*))?", re.DOTALL)
_SCHEME: Final = re.compile(r"(?i)(?P<scheme>bearer|basic|token) +(?P<value>.*)")
_WORKSPACE: Final = "${workspaceFolder}"
_INPUT: Final = re.compile(r"\$\{input:([^}]+)\}")
_DOLLAR: Final = "${DOLLAR:-$}"


@dataclass(slots=True)
class Imported:
    """The imported servers, and the variables to set, each with the place of its value in the host's file."""

    servers: dict[str, dict[str, object]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    sources: list[Path] = field(default_factory=list)

    def render(self) -> str:
        """The configuration as YAML."""
        return HEADER + yaml.safe_dump({"mcpServers": self.servers}, sort_keys=False, allow_unicode=True, width=120)


def locations(
    host: str, folder: Path, environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> list[Path]:
    """The files in which `host` keeps its servers, the most specific last; empty for an unknown host."""
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())
    match platform:
        case "darwin":
            programs = home / "Library" / "Application Support"
        case "win32":
            programs = Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
        case _:
            programs = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    code = programs / "Code" / "User"
    known = {
        "claude": [programs / "Claude" / "claude_desktop_config.json"],
        "claude-code": [home / ".claude.json", folder / ".mcp.json"],
        "cursor": [home / ".cursor" / "mcp.json", folder / ".cursor" / "mcp.json"],
        "vscode": [code / "mcp.json", folder / ".vscode" / "mcp.json"],
        "windsurf": [home / ".codeium" / "windsurf" / "mcp_config.json"],
        "cline": [code / "globalStorage" / "saoudrizwan.claude-dev" / "settings" / "cline_mcp_settings.json"],
        "gemini": [home / ".gemini" / "settings.json", folder / ".gemini" / "settings.json"],
    }
    return known.get(host, [])


def import_servers(source: str, folder: Path, environ: Mapping[str, str] = os.environ) -> Imported:
    """The servers of a host (by name) or of a file. Raises ConfigurationError."""
    candidates = locations(source, folder, environ)
    paths = [path for path in candidates if path.is_file()] if candidates else [Path(source)]
    if not paths:
        looked = ", ".join(map(str, candidates))
        raise ConfigurationError([Problem(source, f"no configuration of this host was found; looked at {looked}")])
    imported = Imported(sources=paths)
    for path in paths:
        for name, server in _servers(read_document(path), folder):
            imported.servers[name] = _Writer(imported, name, path.absolute().parent).server(
                translation.translate(server)
            )
    if not imported.servers:
        raise ConfigurationError([Problem(str(path), "names no servers") for path in paths])
    return imported


def _servers(document: Node, folder: Path) -> Iterator[tuple[str, Node]]:
    """Every server of a file; Claude Code keeps those of one project under `projects`."""
    project = document.members.get("projects", Node(None)).members.get(str(folder.absolute()), Node(None))
    for holder in (document, project):
        for key in translation.SERVER_MAPS:
            for name, server in holder.members.get(key, Node(None)).members.items():
                if isinstance(server.value, dict):
                    yield name, server


def looks_secret(name: str, value: str) -> bool:
    """Whether a value is probably a secret, judged by its name and by its form."""
    if "${" in value:
        return False
    if _PASSWORD_IN_URL.search(value) or _TOKEN.match(value) or _UUID.fullmatch(value):
        return True
    if _PATH.match(value) or "://" in value:
        return False
    if _SECRET_NAME.search(name) and not _NO_SECRET.fullmatch(value):
        return True
    return any(_is_random(part) for part in re.split(r"[-_.:/@,\s]", value))


def _is_random(text: str) -> bool:
    """Whether a text mixes letters and digits, is long, and has the entropy of random characters."""
    if len(text) < 16 or text.isalpha() or text.isdigit():
        return False
    entropy = -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())
    return entropy > 3


@dataclass(frozen=True, slots=True)
class _Writer:
    """Rewrites one server; each secret becomes a variable."""

    imported: Imported
    name: str
    folder: Path

    def server(self, translated: Node) -> dict[str, object]:
        plain = translated.plain
        assert isinstance(plain, dict), "translate returns mappings"
        server = {key: self._resolved(value) for key, value in plain.items()}
        for key in ("env", "headers"):
            if isinstance(values := server.get(key), dict):
                server[key] = {name: self._value(key, name, value) for name, value in values.items()}
        for key in ("args", "headers_command"):
            if isinstance(words := server.get(key), list):
                server[key] = self._arguments(key, words)
        if isinstance(oauth := server.get("oauth"), dict) and isinstance(client := oauth.get("client"), dict):
            server["oauth"] = {**oauth, "client": self._client(client)}
        if isinstance(url := server.get("url"), str):
            server["url"] = self._url(url)
        for key in ("cwd", translation.ENV_FILE):
            if isinstance(path := server.get(key), str) and not path.startswith(("~", "$")):
                server[key] = os.path.normpath(self.folder / path)
        if server.get("enabled") is True:
            del server["enabled"]
        return server

    def _resolved(self, value: object) -> object:
        """References that depend on the host and on the place of its file, replaced by what they stand for."""
        match value:
            case str():
                value = _escaped(value)
                if self.folder.name == ".gemini":
                    value = re.sub(r"\$([A-Za-z_]\w*)", r"${\1}", value)
                workspace = self.folder.parent if self.folder.name.startswith(".") else self.folder
                value = value.replace(_WORKSPACE, str(workspace))
                return _INPUT.sub(lambda match: self._variable(match[1], f"the input {match[1]}"), value)
            case dict():
                return {key: self._resolved(member) for key, member in value.items()}
            case list():
                return [self._resolved(item) for item in value]
            case _:
                return value

    def _value(self, section: str, key: str, value: object) -> object:
        if not isinstance(value, str):
            return value
        scheme = _SCHEME.fullmatch(value) if section == "headers" else None
        head, secret = (f"{scheme['scheme']} ", scheme["value"]) if scheme else ("", value)
        if not looks_secret(key, secret):
            return value
        own = section == "env" and key.isupper()
        return head + self._variable(key if own else f"{self.name}_{key}", f"{self.name}: {section}.{key}")

    def _client(self, client: dict[str, object]) -> dict[str, object]:
        """`oauth.client`, whose secret is one whatever it looks like."""
        secret = client.get("secret")
        if not isinstance(secret, str) or "${" in secret:
            return client
        return {**client, "secret": self._variable(f"{self.name}_client_secret", f"{self.name}: oauth.clientSecret")}

    def _arguments(self, key: str, arguments: list[object]) -> list[object]:
        written: list[object] = []
        flag = ""
        for index, argument in enumerate(arguments):
            text = argument if isinstance(argument, str) else ""
            match = _FLAG.fullmatch(text)
            name = match["name"] if match else flag
            value = (match["value"] or "") if match else text
            if value and looks_secret(name, value):
                variable = self._variable(f"{self.name}_{name or 'secret'}", f"{self.name}: {key}.{index}")
                written.append(text.removesuffix(value) + variable)
            else:
                written.append(argument)
            flag = match["name"] if match and match["value"] is None else ""
        return written

    def _url(self, url: str) -> str:
        if _PASSWORD_IN_URL.search(url):
            return self._variable(f"{self.name}_url", f"{self.name}: url")
        for key, value in parse_qsl(urlsplit(url).query):
            if looks_secret(key, value) and value in url:
                url = url.replace(value, self._variable(f"{self.name}_{key}", f"{self.name}: url"))
        return url

    def _variable(self, wanted: str, place: str) -> str:
        """A reference to a variable of its own, named after the place of the value."""
        base = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_").upper()
        base = base if re.match(r"[A-Z_]", base) else f"_{base}"
        name, number = base, 1
        while self.imported.variables.setdefault(name, place) != place:
            number += 1
            name = f"{base}_{number}"
        return f"${{{name}}}"


def _escaped(text: str) -> str:
    """A host's text, so that what is plain text to the host is plain text in our file too."""
    found = HOST_REFERENCE.finditer(text)
    written, end = "", 0
    for match in found:
        written += text[end : match.start()].replace("${", "$${")
        # Two dollar signs would begin our escape: the first comes from the default of a variable.
        written = written.removesuffix("$") + _DOLLAR if written.endswith("$") else written
        written, end = written + match.group(), match.end()
    return written + text[end:].replace("${", "$${")
