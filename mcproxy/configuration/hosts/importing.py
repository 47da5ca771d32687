"""`mcproxy import`: hosts' servers as a configuration of mcproxy, with secrets replaced by `${VARIABLES}`.

Says what it left out, and produces nothing that `mcproxy check` refuses. Reads the hosts' files and writes nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import yaml

from mcproxy.configuration.documents.parsing import parse_document
from mcproxy.configuration.documents.tree import Node
from mcproxy.configuration.expansion import Expansion, input_variable, referred
from mcproxy.configuration.hosts import translation
from mcproxy.configuration.hosts.dialects import HostServer, host_servers, other_projects
from mcproxy.configuration.hosts.locations import HOSTS, Machine, host_named, host_of
from mcproxy.configuration.hosts.references import (
    HostSyntax,
    Origin,
    escaped,
    foreign_references,
    reference,
    workspace_of,
)
from mcproxy.configuration.loading import read_document
from mcproxy.configuration.problems import ConfigurationError, Problem, dotted
from mcproxy.configuration.references import suggestion
from mcproxy.configuration.validation import Validator
from mcproxy.settings.secret_values import PASSWORD_IN_URL, argument_values, looks_secret

HEADER: Final = "# `mcproxy check --connect` validates this file and connects to its servers.\n"

_SCHEME: Final = re.compile(r"(?i)(?P<scheme>bearer|basic|token) +(?P<value>.*)")
_NAME: Final = re.compile(r"\$\{(?:env:)?(\w+)")
_ESSENTIAL: Final = ("command", "url", "args", "env", "headers", "cwd", "type")
"""Keys without which a server would be a different one."""


@dataclass(slots=True)
class Imported:
    """The imported servers, the variables that they need, and what could not be carried over."""

    existing: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that the `.env` beside the new file has already. Secret (R44)."""
    servers: dict[str, dict[str, object]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    """For each variable, the place of its value in the host's file."""
    values: dict[str, str] = field(default_factory=dict, repr=False)
    """The values in the host's file for these variables. Secret (R44)."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment, whose variables have other uses. Secret (R44)."""
    sources: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences on what was left out or changed."""

    def render(self) -> str:
        """The configuration as YAML."""
        return HEADER + yaml.safe_dump({"mcpServers": self.servers}, sort_keys=False, allow_unicode=True, width=120)

    def render_env(self) -> str:
        """The lines of `.env` for the variables that are not there yet."""
        return "".join(
            f"{name}={_quoted(value)}\n"
            for name, value in self.values.items()
            if name not in self.existing and "\n" not in value
        )

    def input(self, identifier: str) -> str:
        """The reference to a value that a host prompts for, by its id."""
        variable = input_variable(identifier)
        self.variables[variable] = f"the input {identifier}"
        return reference(variable)

    def secret(self, server: str, wanted: str, place: str, value: str) -> str:
        """The name of a new variable for a secret, named after the server and the place of the value.

        Its prefix keeps a file from choosing a variable that the environment has for another use.
        """
        base = "MCPROXY_" + re.sub(r"\W+", "_", f"{server}_{wanted}", flags=re.ASCII).strip("_").upper()
        name, number = base, 1
        while self._is_taken(name, place, value):
            number += 1
            name = f"{base}_{number}"
        self.variables[name] = place
        self.values[name] = value
        return name

    def _is_taken(self, name: str, place: str, value: str) -> bool:
        elsewhere = (self.existing.get(name, value), self.environ.get(name, value))
        return elsewhere != (value, value) or self.variables.get(name, place) != place

    @property
    def inherited(self) -> dict[str, list[str]]:
        """What servers take from the environment and from files, as the host's file says, with the servers' names."""
        taken: dict[str, list[str]] = {}
        for name, server in self.servers.items():
            for what in dict.fromkeys(referred(server)):
                if what not in self.variables:
                    taken.setdefault(what, []).append(name)
        return taken

    @property
    def missing(self) -> dict[str, str]:
        """The variables that the user has to set: the host's file has no value, or one that `.env` cannot hold."""
        return {
            name: place
            for name, place in self.variables.items()
            if name not in self.existing and "\n" in self.values.get(name, "\n")
        }


def import_servers(
    sources: str | Sequence[str],
    folder: Path,
    environ: Mapping[str, str] = os.environ,
    existing: Mapping[str, str] | None = None,
    connected: Collection[tuple[str, str]] = (),
    host: str | None = None,
) -> Imported:
    """The servers of hosts (by name) and files. Raises ConfigurationError.

    `connected` are entries of the gateway itself, each as its file and its name there: they are left out. `host` is
    the host whose references files have that its own path does not tell.
    In one host's files the more specific one wins; servers of two sources are both kept, the second under another
    name. What a configuration of mcproxy cannot hold is left out, with a note.
    """
    imported = Imported(existing or {}, environ=environ)
    for source in [sources] if isinstance(sources, str) else sources:
        paths = _files(source, folder, environ)
        imported.sources += paths
        found: dict[str, dict[str, object]] = {}
        for path in paths:
            document = read_document(path)
            origin = Origin(path.absolute().parent, _syntax(path, source, host), imported.input)
            if others := other_projects(document, folder):
                imported.notes.append(f"servers of projects were left out: import them in {' or '.join(others)}")
            for server in host_servers(document, folder, origin):
                if _is_gateway(server) or (str(path.absolute()), server.name) in connected:
                    imported.notes.append(f"{server.name} was left out: it is this gateway")
                else:
                    found[server.name] = _written(imported, server, path)
        _add(imported, found, source)
    if not imported.servers:
        notes = "".join(f"; {note}" for note in imported.notes)
        raise ConfigurationError([Problem(str(path), f"names no servers{notes}") for path in imported.sources])
    _leave_out_refused(imported)
    return imported


def _syntax(path: Path, source: str, host: str | None) -> HostSyntax | None:
    """The references in a host's file: of the host that the user names, or else of the one whose file it is."""
    named = host_named(host or source)
    if named is None and host is not None:
        hint = suggestion(host, HOSTS) or f": {', '.join(HOSTS)}"
        raise ConfigurationError([Problem(host, f"is no host that mcproxy knows{hint}")])
    found = named or host_of(path)
    return None if found is None else found.references


def _files(source: str, folder: Path, environ: Mapping[str, str]) -> list[Path]:
    host = host_named(source)
    if host is None:
        path = Path(source)
        if not path.suffix and not path.exists():
            hint = suggestion(source, HOSTS) or f": {', '.join(HOSTS)}"
            raise ConfigurationError([Problem(source, f"is no file, and no host that mcproxy knows{hint}")])
        return [path]
    candidates = Machine.this(environ).files(host, folder)
    paths = [path for path in candidates if path.is_file()]
    if not paths:
        looked = ", ".join(map(str, candidates))
        raise ConfigurationError([Problem(source, f"no configuration of this host was found; looked at {looked}")])
    return paths


def _is_gateway(server: HostServer) -> bool:
    """Whether a host's server is what `mcproxy connect` wrote: a gateway must not start itself."""
    command, args = server.members.get("command", Node(None)), server.members.get("args", Node(None)).plain
    started = [command.text, *(map(str, args) if isinstance(args, list) else ())]
    return "serve" in started and "--stdio" in started and any(Path(word).name == "mcproxy" for word in started)


def _written(imported: Imported, server: HostServer, path: Path) -> dict[str, object]:
    """One server as our file has it."""
    notes = [f"{server.name}: {note}" for note in [*server.notes, *translation.left_out(server.entry)]]
    notes += [
        f"{server.name}: {found} stays plain text, as it is to its host"
        for _, found in foreign_references(server.entry)
    ]
    imported.notes += [note for note in notes if note not in imported.notes]
    writer = _Writer(imported, server.name, path.absolute().parent)
    written = writer.server(translation.translate(server.entry))
    workspace = workspace_of(path.absolute().parent)
    if "cwd" not in written and names_a_file(written, workspace):
        written["cwd"] = escaped(str(workspace))
    return written


def names_a_file(server: Mapping[str, object], folder: Path) -> bool:
    """Whether a word of a server's command names a file or folder relative to `folder`, in which it starts alone."""
    command, args = str(server.get("command", "")), server.get("args")
    words = [*args] if isinstance(args, list) else []
    if os.sep in command:  # Another command is looked for on the PATH.
        words.append(command)
    return any(word and not os.path.isabs(word) and os.path.exists(folder / word) for word in map(str, words))


def without_secrets(imported: Imported, name: str, server: object, folder: Path) -> dict[str, object]:
    """An entry of `mcpServers` whose secrets are variables, which `imported` then has."""
    return _Writer(imported, name, folder).server(parse_document(json.dumps(server), "entry.json"))


def _add(imported: Imported, found: Mapping[str, dict[str, object]], source: str) -> None:
    for name, server in found.items():
        if imported.servers.get(name) == server:
            continue
        free, number = name, 1
        while free in imported.servers:
            number += 1
            free = f"{name}-{number}"
        if free != name:
            imported.notes.append(f"{name} of {source} is called {free}: another source has a server of that name")
        imported.servers[free] = server


def _leave_out_refused(imported: Imported) -> None:
    """Removes what `mcproxy check` would refuse, so that the rest can be used at once."""
    while imported.servers and (problems := _problems(imported)):
        for problem in problems:
            name, *keys = problem.path[1:] or (None,)
            server = imported.servers.get(str(name))
            if server is None:
                continue
            if keys and keys[0] in server and keys[0] not in _ESSENTIAL:
                del server[str(keys[0])]
                imported.notes.append(f"{name}: `{keys[0]}` was left out: {problem.sentence}")
            else:
                del imported.servers[str(name)]
                imported.notes.append(
                    f"{name} was left out: {dotted(tuple(keys))} {problem.sentence}".replace("  ", " ")
                )
        if not any(len(problem.path) > 1 for problem in problems):
            raise ConfigurationError(problems)


def _problems(imported: Imported) -> list[Problem]:
    """The problems of an entry once every variable is set."""
    text = imported.render()
    variables = {**dict.fromkeys(_NAME.findall(text), "value"), **imported.existing, **imported.values}
    expansion = Expansion(Path("mcproxy.yaml"), variables)
    Validator(expansion).settings(parse_document(text, "mcproxy.yaml"))
    return expansion.problems


@dataclass(frozen=True, slots=True)
class _Writer:
    """Rewrites one server; each secret becomes a variable."""

    imported: Imported
    name: str
    folder: Path

    def server(self, translated: Node) -> dict[str, object]:
        plain = translated.plain
        assert isinstance(plain, dict), "translate returns mappings"
        server = dict(plain)
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

    def _value(self, section: str, key: str, value: object) -> object:
        if not isinstance(value, str):
            return value
        scheme = _SCHEME.fullmatch(value) if section == "headers" else None
        head, secret = (f"{scheme['scheme']} ", scheme["value"]) if scheme else ("", value)
        if not looks_secret(key, secret):
            return value
        return head + self._reference(key, f"{self.name}: {section}.{key}", secret)

    def _client(self, client: dict[str, object]) -> dict[str, object]:
        """`oauth.client`, whose secret is one without regard to its form."""
        secret = client.get("secret")
        if not isinstance(secret, str) or "${" in secret:
            return client
        variable = self._reference("client_secret", f"{self.name}: oauth.clientSecret", secret)
        return {**client, "secret": variable}

    def _arguments(self, key: str, arguments: list[object]) -> list[object]:
        written = [*arguments]
        found = argument_values([argument if isinstance(argument, str) else "" for argument in arguments])
        secrets = [value for value in found if looks_secret(value.name, value.value)]
        # A narrower value first: of `Authorization: Bearer X` only X becomes a variable.
        for secret in sorted(secrets, key=lambda value: (-value.end, value.end - value.start)):
            text = str(written[secret.index])
            if text[secret.start : secret.end] == secret.value:
                place = f"{self.name}: {key}.{secret.index}"
                variable = self._reference(secret.name or "secret", place, secret.value)
                written[secret.index] = text[: secret.start] + variable + text[secret.end :]
        return written

    def _url(self, url: str) -> str:
        if PASSWORD_IN_URL.search(url):
            return self._reference("url", f"{self.name}: url", url)
        for key, value in parse_qsl(urlsplit(url).query):
            if looks_secret(key, value) and value in url:
                url = url.replace(value, self._reference(key, f"{self.name}: url", value))
        return url

    def _reference(self, wanted: str, place: str, value: str) -> str:
        return reference(self.imported.secret(self.name, wanted, place, value))


def _quoted(value: str) -> str:
    """A value of a dotenv file, in quotes."""
    if not set(value) & {'"', "\\"}:
        return f'"{value}"'
    escaped = value.replace("\\", r"\\").replace("'", r"\'")
    return f"'{escaped}'"
