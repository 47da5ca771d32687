"""Find and read the configuration file: path in, checked `Settings` and their secrets out.

Hosts' own files are accepted unchanged. Connects to nothing; no message shows a value, which may be a secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from mcproxy.configuration.documents.parsing import parse_document
from mcproxy.configuration.documents.tree import Node, follow
from mcproxy.configuration.expansion import Expansion
from mcproxy.configuration.files import file_text
from mcproxy.configuration.hosts.locations import syntax_of
from mcproxy.configuration.hosts.references import Rewriting, foreign_references
from mcproxy.configuration.hosts.translation import SERVER_MAPS, is_hosts
from mcproxy.configuration.problems import START, ConfigurationError, PathKey, Problem
from mcproxy.configuration.validation import Validator
from mcproxy.egress.egress import from_environment
from mcproxy.settings import Settings
from mcproxy.settings.secret_values import argument_secrets
from mcproxy.settings.url_secrets import url_credentials

VARIABLE: Final = "MCPROXY_CONFIG"
FILE_NAMES: Final = ("mcproxy.yaml", "mcproxy.yml", "mcproxy.json", "mcproxy.toml")
ENV_FILE: Final = ".env"
"""Beside the configuration: variables for it that the environment does not have, as `NAME=value` lines."""


class Configuration(msgspec.Struct, frozen=True):
    """A validated configuration file. `secrets` are the values that no log may show (R44)."""

    path: Path
    settings: Settings
    secrets: frozenset[str]
    files: frozenset[Path]
    """`path` and the files that it refers to; a change of any may change the settings."""
    warnings: tuple[Problem, ...] = ()
    """What is valid and probably a mistake, in the order of the file."""
    document: Node = msgspec.field(default_factory=lambda: Node({}))

    def problem(self, sentence: str, *path: PathKey) -> Problem:
        """A problem with the key at `path`, which was found later than on reading."""
        return Problem(str(self.path), sentence, follow(self.document, path).place, path)

    def server_problem(self, sentence: str, name: str, *keys: PathKey) -> Problem:
        """A problem with a server, by its name."""
        found = (key for key in SERVER_MAPS if name in self.document.members.get(key, Node({})).members)
        return self.problem(sentence, next(found, SERVER_MAPS[0]), name, *keys)


def find(environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> Path:
    """The file that `MCPROXY_CONFIG` names, else one of FILE_NAMES in this folder or the user's configuration folder.

    Raises ConfigurationError where there is none.
    """
    if (path := found(environ, folder)) is not None:
        return path
    looked = " or ".join(map(str, _folders(environ, folder)))
    sentence = (
        f"no configuration: name a file with --config or {VARIABLE}, or write {FILE_NAMES[0]} to {looked}; "
        f"`mcproxy import HOST -o {FILE_NAMES[0]}` and `mcproxy add` make one"
    )
    raise ConfigurationError([Problem("mcproxy", sentence)])


def found(environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> Path | None:
    """The file that `find` finds; None where there is none."""
    if named := environ.get(VARIABLE):
        return Path(named)
    paths = (inside / name for inside in _folders(environ, folder) for name in FILE_NAMES)
    return next((path for path in paths if path.is_file()), None)


def _folders(environ: Mapping[str, str], folder: Path | None) -> tuple[Path, Path]:
    return (folder or Path.cwd(), user_folder(environ))


def user_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the user's own configuration (XDG Base Directory Specification; %APPDATA% on Windows)."""
    home = environ.get("XDG_CONFIG_HOME") or environ.get("APPDATA")
    return (Path(home) if home else Path.home() / ".config") / "mcproxy"


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings in the file at `path`. Raises ConfigurationError with every problem in it."""
    return load_configuration(path, environ).settings


def load_configuration(path: Path, environ: Mapping[str, str] = os.environ, *, lenient: bool = False) -> Configuration:
    """As `load`, with the secrets in the settings and the files that were read."""
    return interpret(path, read_document(path), environ, lenient=lenient)


def interpret(
    path: Path, document: Node, environ: Mapping[str, str] = os.environ, *, lenient: bool = False
) -> Configuration:
    """The configuration that a document is, or would be, at `path`. Raises ConfigurationError.

    If `lenient`, a server that cannot run as written is only marked with its fault, unless `proxy.strict` is set.

    Variables that the environment does not have are taken from `.env` beside it, unless it is a host's own file.
    """
    host_file = path.name not in FILE_NAMES and is_hosts(document, path.suffix)
    expansion = Expansion(path, environ, host_file=host_file)
    if host_file:
        document = _rewritten(document, path)
        expansion.warnings += [
            Problem(str(path), f"{found} {_FOREIGN}", node.place, node.path)
            for node, found in foreign_references(document)
        ]
    else:
        expansion.read_env_file(ENV_FILE)
    validator = Validator(expansion, lenient=lenient)
    settings = validator.settings(document)
    if settings is not None:
        settings = settings.leaving(environ)
    files = frozenset(expansion.files)
    if settings is None:
        raise ConfigurationError(expansion.problems, files)
    warnings = tuple(sorted([*validator.warnings, *expansion.warnings], key=lambda warning: warning.place or START))
    secrets = frozenset(expansion.secrets | credentials(settings))
    return Configuration(path, settings.keeping_secret(secrets), secrets, files, warnings, document)


_FOREIGN: Final = "is plain text in this host's own file: refer to it as the host does, or use mcproxy.yaml"


def _rewritten(document: Node, path: Path) -> Node:
    """A host's own file with its references in our syntax."""
    rewriting = Rewriting(syntax_of(path, document), path.absolute().parent)
    members = {
        key: replace(node, value={name: rewriting.server(entry) for name, entry in node.members.items()})
        if key in SERVER_MAPS and isinstance(node.value, dict)
        else rewriting.literal(node)
        for key, node in document.members.items()
    }
    return replace(document, value=members)


def read_document(path: Path) -> Node:
    """The tree of a configuration file, without expansion. Raises ConfigurationError."""
    return parse_document(file_text(path, "utf-8-sig"), str(path))


def _proxy_secrets(settings: Settings) -> set[str]:
    """Passwords for proxies, as they are written, decoded, and sent."""
    found: set[str] = set()
    for egress in (settings.proxy.tracing.leaving, *(upstream.leaving for upstream in settings.upstreams)):
        found |= egress.secrets()
    return found | from_environment(os.environ).secrets()


MIN_URL_SECRET: Final = 8
"""Characters of a part of a URL that is taken for a secret: shorter ones are mostly ordinary words."""


def credentials(settings: Settings) -> set[str]:
    """Values that are secret from any source: credentials for upstreams, and the gateway's own key."""
    values = set(settings.proxy.secret)
    values.update(_proxy_secrets(settings))
    values.update(part for part in url_credentials(settings.cluster.redis or "") if len(part) >= MIN_URL_SECRET)
    values.update(hook.secret for hook in settings.access.hooks)
    if settings.proxy.embeddings is not None and settings.proxy.embeddings.key is not None:
        values.add(settings.proxy.embeddings.key)
    if settings.access.approvals.webhook is not None:
        values.add(settings.access.approvals.webhook.secret)
    for upstream in settings.upstreams:
        values.update(upstream.env.values(), upstream.headers.values())
        values.update(argument_secrets((*upstream.args, *upstream.headers_command)))
        # Of `Bearer TOKEN` the token alone is a secret too.
        values.update(value.rpartition(" ")[2] for value in upstream.headers.values())
        values.update(part for part in url_credentials(upstream.url or "") if len(part) >= MIN_URL_SECRET)
    return values - {""}
