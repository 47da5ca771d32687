"""`mcproxy connect`: put the gateway into a host's own file, with a preview first, and take it out again."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mcproxy.cli.health import listening_at
from mcproxy.cli.output import print_err
from mcproxy.cli.running.through import KEY_VARIABLE
from mcproxy.cli.runtime import ExitCode, own_command
from mcproxy.cli.setup.files import confirmed, existing_text, write
from mcproxy.configuration.hosts.connecting import CannotConnect, Connection, Program, Running, connect, entry
from mcproxy.configuration.hosts.locations import ALIASES, HOSTS, Host, Machine
from mcproxy.configuration.loading import Configuration
from mcproxy.configuration.problems import ConfigurationError, Problem
from mcproxy.configuration.references import suggestion
from mcproxy.service.state import state_folder


@dataclass(frozen=True, slots=True)
class HostFile:
    """The file of a host that is changed."""

    host_name: str
    host: Host
    path: Path

    def record(self, name: str) -> Path:
        """Where it is kept what was done to the file, for a gateway that is called `name` there."""
        digest = hashlib.sha256(f"{self.path}\n{name}".encode()).hexdigest()[:16]
        return _records() / f"{self.host_name}-{digest}.json"

    def connections(self) -> list[Connection]:
        """What was done to it, if anything: one for each gateway."""
        return sorted((done for done in _connections() if done.path == str(self.path)), key=lambda done: done.name)


def own_entries() -> frozenset[tuple[str, str]]:
    """The entries that `mcproxy connect` made and did not undo, each as its file and its name there."""
    return frozenset((done.path, done.name) for done in _connections())


def _connections() -> Iterator[Connection]:
    for record in sorted(_records().glob("*.json")):
        try:
            yield msgspec.json.decode(existing_text(record) or "", type=Connection)
        except msgspec.DecodeError as error:
            raise _wrong(str(record), f"is damaged: {error}; remove it") from error


def _records() -> Path:
    return state_folder() / "connections"


def host_file(name: str, project: Path | None) -> HostFile:
    """The file of a host, the user's or that of a project. Raises ConfigurationError."""
    known = ALIASES.get(name, name)
    host = HOSTS.get(known)
    if host is None:
        hint = suggestion(name, HOSTS) or f": {', '.join(HOSTS)}"
        raise _wrong(name, f"is no host that mcproxy knows{hint}")
    if project is None:
        return HostFile(known, host, Machine.this().user_file(host).absolute())
    if host.project is None:
        raise _wrong(name, f"has no file of a project: {host.title} knows the user's alone")
    return HostFile(known, host, (project / host.project).absolute())


def reach(
    host: Host, configuration: Configuration, url: str | None, key_variable: str | None, *, stdio: bool
) -> Program | Running:
    """How the host gets to the gateway: at its URL where it runs, else by starting it."""
    if url is None and not stdio and host.url is not None:
        url = running_at(configuration)
    if url is None:
        command, *args = own_command()
        config = str(configuration.path.absolute())
        path = (("PATH", os.environ["PATH"]),) if "PATH" in os.environ else ()  # programs with windows have a short one
        return Program(command, (*args, "serve", "--stdio", "--config", config), path)
    authentication = configuration.settings.access.authentication
    wants_key = bool(authentication.keys) and not authentication.oauth.issuers
    return Running(url, key_variable or (KEY_VARIABLE if wants_key else None), authentication.key_header)


def running_at(configuration: Configuration) -> str | None:
    """The URL of the endpoint, if the gateway of this configuration runs."""
    proxy = configuration.settings.proxy
    base = listening_at(proxy)
    return None if base is None else (proxy.public_url or base).rstrip("/") + proxy.paths.mcp


def write_connection(file: HostFile, name: str, gateway: Program | Running, *, yes: bool, dry_run: bool) -> int:
    """Shows the change of the file, asks, and writes it."""
    text = existing_text(file.path)
    done = next((done for done in file.connections() if done.name == name), None)
    try:
        original = done.undone(text) if done is not None and text is not None else text
        connection, after = connect(
            file.host_name, file.host, str(file.path), original, name, entry(file.host, gateway)
        )
    except CannotConnect as error:
        raise _wrong(file.host_name, str(error)) from error
    if after == text:
        print_err(f"{file.host.title} has it already: {file.path}")
        return ExitCode.OK
    if not confirmed(file.path, text or "", after, yes=yes, dry_run=dry_run):
        return ExitCode.OK if dry_run else ExitCode.INPUT
    write(file.record(name), msgspec.json.encode(connection).decode())
    write(file.path, after)
    if isinstance(gateway, Running) and gateway.key_variable is not None:
        print_err(f"{file.host.title} needs the variable {gateway.key_variable}: a key of `mcproxy keys add`")
    print_err(f"{file.path} has it now as {name}; {file.host.title}: {file.host.restart}")
    naming = f" --name {shlex.quote(name)}" if len(file.connections()) > 1 else ""
    print_err(f"to undo: mcproxy connect {file.host_name} --undo{naming}")
    return ExitCode.OK


def undo(file: HostFile, name: str | None, *, yes: bool, dry_run: bool) -> int:
    """Takes the gateway of that name out of the file again, or the only one that there is."""
    found = [done for done in file.connections() if name in {None, done.name}]
    text = existing_text(file.path)
    if not found or text is None:
        print_err(f"nothing to undo: {file.path} was not changed by `mcproxy connect {file.host_name}`")
        return ExitCode.NOT_FOUND
    if len(found) > 1:
        raise _wrong(str(file.path), f"has {' and '.join(done.name for done in found)}: choose one with --name")
    (done,) = found
    try:
        before = done.undone(text)
    except CannotConnect as error:
        raise _wrong(file.host_name, str(error)) from error
    if before != text and not confirmed(file.path, text, before or "", yes=yes, dry_run=dry_run):
        return ExitCode.OK if dry_run else ExitCode.INPUT
    if before is None:
        file.path.unlink()
    elif before != text:
        write(file.path, before)
    file.record(done.name).unlink()
    print_err(f"{file.path} " + ("is gone again" if before is None else f"no longer has {done.name}"))
    return ExitCode.OK


def _wrong(where: str, sentence: str) -> ConfigurationError:
    return ConfigurationError([Problem(where, sentence)])
