"""Computes the change that puts the gateway into a host's file as one server, and its exact reversal.

Decides and returns values; `cli.setup.connecting` reads, asks and writes.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Final

import msgspec

from mcproxy.configuration.documents.parsing import parse_document
from mcproxy.configuration.documents.tree import Node, follow
from mcproxy.configuration.editing import TextEdit, put, remove
from mcproxy.configuration.hosts.locations import HOSTS, Host
from mcproxy.configuration.problems import Path

EMPTY: Final = {".json": "{}\n", ".jsonc": "{}\n"}
"""The content that stands for an empty file, by its suffix: JSON has no empty document."""


@dataclass(frozen=True, slots=True)
class Program:
    """The gateway started by the host: `mcproxy serve --stdio`."""

    command: str
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """The gateway that runs at a URL."""

    url: str
    key_variable: str | None = None
    """The environment variable with the caller's API key; None where it needs none."""
    key_header: str | None = None
    """The header for the key; None for `Authorization: Bearer`."""


class CannotConnect(Exception):
    """The host cannot reach the gateway in this way. The text says what to do."""


def entry(host: Host, gateway: Program | Running) -> dict[str, object]:
    """The gateway as the host writes a server. Raises CannotConnect."""
    match gateway:
        case Program(command, args, env):
            started: dict[str, object] = {host.command: command, "args": list(args)}
            if host.one_list:
                started = {host.command: [command, *args]}
            return {**dict(host.stdio), **started, **({host.env: dict(env)} if env else {})}
        case Running(url=url):
            if host.url is None:
                raise CannotConnect(f"{host.title} only starts programs: leave out --url")
            return {**dict(host.http), host.url: url, **_credentials(host, gateway)}


def _credentials(host: Host, gateway: Running) -> dict[str, object]:
    variable = gateway.key_variable
    if variable is None:
        return {}
    if host.token_variable is not None and gateway.key_header is None:
        return {host.token_variable: variable}
    if host.header_variables is not None and gateway.key_header is not None:
        return {host.header_variables: {gateway.key_header: variable}}
    if host.variable is None:
        raise CannotConnect(f"{host.title} takes no key from a variable: use --stdio, or write the key into its file")
    value = host.variable.replace("%s", variable)
    header = ("Authorization", f"Bearer {value}") if gateway.key_header is None else (gateway.key_header, value)
    return {host.headers: dict([header])}


class Connection(msgspec.Struct, frozen=True):
    """A change that `connect` made to a file, so that it can be undone."""

    host: str
    path: str
    name: str
    """The server's name in the file."""
    original: str | None
    """The file before; None if it did not exist. Secret: a host's file may hold tokens (R44)."""
    digest: str
    """SHA-256 of the file as it was written."""
    start: int
    before: str
    after: str

    def undone(self, text: str) -> str | None:
        """The file without the change, byte for byte if nothing else changed since; None if it has to be removed.

        Raises CannotConnect if that very entry was changed since, ConfigurationError if the file is not valid.
        """
        if text_digest(text) == self.digest:
            return self.original
        edit = TextEdit(self.start, self.before, self.after)
        without = edit.revert(text)
        return self._without_entry(text, edit) if without is None else without

    def _without_entry(self, text: str, edit: TextEdit) -> str:
        """The file without the entry, or with the one that it replaced.

        For a file that its host wrote anew as a whole, as Claude Code does with each start.
        """
        host, original = HOSTS[self.host], _editable(self.original, self.path)
        replaced = _entry_in(original, self.path, host, self.name)
        written = _entry_in(edit.apply(original), self.path, host, self.name)
        found = _entry_in(text, self.path, host, self.name)
        if found is None:
            return text
        if written is None or found.plain != written.plain:
            raise CannotConnect(f"{self.path} was changed since: remove `{self.name}` by hand")
        if replaced is not None:
            return put(text, self.path, found.path, replaced.plain).apply(text)
        return remove(text, self.path, found.path).apply(text)


def connect(
    host_name: str, host: Host, path: str, text: str | None, name: str, server: object
) -> tuple[Connection, str]:
    """The change that puts the gateway into a file, and the file as it is then; `text` is None where there is none.

    Raises ConfigurationError where the file does not allow it.
    """
    base = _editable(text, path)
    edit = put(base, path, (*_servers_in(parse_document(base, path), host), name), server)
    after = edit.apply(base)
    return Connection(host_name, path, name, text, text_digest(after), **asdict(edit)), after


def _servers_in(document: Node, host: Host) -> Path:
    """The keys down to the host's servers in this file."""
    deeper = (*host.servers, host.deeper) if host.deeper is not None else host.servers
    return deeper if follow(document, deeper).path == deeper else host.servers


def _entry_in(text: str, path: str, host: Host, name: str) -> Node | None:
    """A server in a host's file, if it is there."""
    document = parse_document(text, path)
    servers = follow(document, _servers_in(document, host))
    return servers.members.get(name)


def _editable(text: str | None, path: str) -> str:
    """A file's text, or what stands for one that is empty or not there."""
    return text if text is not None and text.strip() else EMPTY.get(PurePath(path).suffix.lower(), "")


def text_digest(text: str) -> str:
    """SHA-256 of a file's text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
