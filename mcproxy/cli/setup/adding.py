"""`mcproxy add`, `remove`, `enable` and `disable`: one server of the configuration's file, its comments kept.

What would not be valid afterwards is not written. A gateway that runs takes the file over by itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import typer
from msgspec.structs import replace

from mcproxy.cli.checking import print_warnings
from mcproxy.cli.output import print_err
from mcproxy.cli.runtime import ExitCode, run, set_up_logs
from mcproxy.cli.setup.files import confirmed, existing_text, write
from mcproxy.cli.setup.importing import add_variables
from mcproxy.configuration.documents.parsing import parse_document
from mcproxy.configuration.documents.tree import Node, follow
from mcproxy.configuration.editing import TextEdit, put, remove
from mcproxy.configuration.expansion import parse_env_file
from mcproxy.configuration.hosts.importing import Imported, names_a_file, without_secrets
from mcproxy.configuration.hosts.translation import SERVER_MAPS
from mcproxy.configuration.loading import (
    ENV_FILE,
    FILE_NAMES,
    Configuration,
    find,
    interpret,
    read_document,
    user_folder,
)
from mcproxy.configuration.packages.bundle import SUFFIXES, unpacked
from mcproxy.configuration.packages.server_json import server_of
from mcproxy.configuration.problems import ConfigurationError, Problem
from mcproxy.configuration.references import suggestion
from mcproxy.service.state import state_folder

_HOST_AND_PORT: Final = re.compile(r"[\w.-]+:\d+(/|$)")


@dataclass(frozen=True, slots=True)
class _ConfigurationFile:
    """The configuration's file as it is."""

    path: Path
    text: str
    document: Node

    def server_path(self, name: str) -> tuple[str, str]:
        """Where a server is, or would be."""
        for key in SERVER_MAPS:
            if name in self.document.members.get(key, Node({})).members:
                return key, name
        held = (key for key in SERVER_MAPS if key in self.document.members)
        return next(held, SERVER_MAPS[0]), name

    def has(self, name: str) -> bool:
        key, _ = self.server_path(name)
        return name in self.document.members.get(key, Node({})).members

    def changed(self, edit: TextEdit) -> str:
        return edit.apply(self.text)


def add_server(
    config: Path | None,
    name: str,
    target: Sequence[str],
    env: Sequence[str],
    headers: Sequence[str],
    *,
    connect: bool,
    yes: bool,
    dry_run: bool,
) -> NoReturn:
    """Connects to the server, shows what it offers, and writes it; exits with FAILED where it does not answer."""
    file = _file(config)
    if file.has(name):
        raise ConfigurationError([Problem(str(file.path), "is there already: choose another name", None, (name,))])
    before = existing_text(file.path.absolute().parent / ENV_FILE) or ""
    imported = Imported(parse_env_file(before))
    server = without_secrets(imported, name, _server(target, env, headers), file.path.absolute().parent)
    after = file.changed(put(file.text, str(file.path), file.server_path(name), server))
    configuration = interpret(file.path, parse_document(after, str(file.path)), {**imported.values, **os.environ})
    set_up_logs(configuration, quiet=True)
    print_warnings([warning for warning in configuration.warnings if warning.path[:2] == file.server_path(name)])

    async def tried_and_written() -> int:
        if connect and not await _answers(configuration, name):
            print_err("nothing was written; --no-connect writes it all the same")
            return ExitCode.FAILED
        if not confirmed(file.path, file.text, after, yes=yes, dry_run=dry_run):
            return ExitCode.OK if dry_run else ExitCode.INPUT
        add_variables(file.path.absolute().parent / ENV_FILE, before, imported.render_env())
        write(file.path, after, mode=0o644)
        print_err(f"{file.path} has {name} now")
        if configuration.settings.access.pins.mode != "off":
            print_err("what it offers is not approved yet (access.pins): `mcproxy lock` approves it")
        return ExitCode.OK

    run(tried_and_written())


async def _answers(configuration: Configuration, name: str) -> bool:
    """Connects to one server alone and reports on it."""
    from mcproxy.cli import reports

    settings = configuration.settings
    only = tuple(spec for spec in settings.upstreams if spec.name == name)
    # Without what speaks of the tools of others.
    access = settings.access.model_copy(update={"hooks": ()})
    alone = settings.model_copy(update={"upstreams": only, "endpoints": {}, "access": access})
    tried = await reports.try_upstreams(replace(configuration, settings=alone))
    reports.print_reports(tried.reports)
    return tried.connected


def remove_server(config: Path | None, name: str, *, yes: bool, dry_run: bool) -> int:
    """Takes a server out of the file."""
    file = _file(config)
    if not file.has(name):
        return _missing(file, name)
    after = file.changed(remove(file.text, str(file.path), file.server_path(name)))
    interpret(file.path, parse_document(after, str(file.path)))
    if not confirmed(file.path, file.text, after, yes=yes, dry_run=dry_run):
        return ExitCode.OK if dry_run else ExitCode.INPUT
    write(file.path, after)
    print_err(f"{file.path} no longer has {name}")
    return ExitCode.OK


def switch(config: Path | None, name: str, *, enabled: bool) -> int:
    """Switches a server on or off in the file."""
    file = _file(config)
    if not file.has(name):
        return _missing(file, name)
    path = file.server_path(name)
    server = follow(file.document, path).members
    if "disabled" in server:
        after = file.changed(put(file.text, str(file.path), (*path, "disabled"), not enabled))
    elif enabled and "enabled" in server:
        after = file.changed(remove(file.text, str(file.path), (*path, "enabled")))
    elif enabled:
        after = file.text
    else:
        after = file.changed(put(file.text, str(file.path), (*path, "enabled"), False))
    if after != file.text:
        interpret(file.path, parse_document(after, str(file.path)))
        write(file.path, after)
    print_err(f"{name} is {'enabled' if enabled else 'disabled'} in {file.path}")
    return ExitCode.OK


def _file(config: Path | None) -> _ConfigurationFile:
    """The configuration's file; one that is still to be made, where there is none."""
    try:
        path = config or find()
    except ConfigurationError:
        path = user_folder() / FILE_NAMES[0]
    text = existing_text(path)
    if text is None and config is not None and not path.parent.is_dir():
        raise ConfigurationError([Problem(str(path), "is in a folder that does not exist")])
    return _ConfigurationFile(path, text or "", parse_document(text or "", str(path)))


def _server(target: Sequence[str], env: Sequence[str], headers: Sequence[str]) -> dict[str, object]:
    """An entry of `mcpServers` from the command line."""
    command, *arguments = target
    if not arguments and not (env or headers):
        if command.endswith(SUFFIXES):
            return unpacked(Path(command), state_folder() / "bundles")
        if command.endswith(".json"):
            return server_of(read_document(Path(command)).plain, command)
    if _HOST_AND_PORT.match(command) and not arguments:
        raise typer.BadParameter(f"is a URL without its scheme: write http://{command}", param_hint="TARGET")
    if "://" in command and not arguments:
        if env:
            raise typer.BadParameter("is for a command; a URL takes --header", param_hint="--env")
        return {"url": command, **_pairs("headers", headers, ":", "--header")}
    if headers:
        raise typer.BadParameter("is for a URL; a command takes --env", param_hint="--header")
    server = {"command": command, **({"args": arguments} if arguments else {})}
    # Hosts start the gateway in other folders.
    cwd = {"cwd": str(Path.cwd())} if names_a_file(server, Path.cwd()) else {}
    return {**server, **cwd, **_pairs("env", env, "=", "--env")}


def _pairs(key: str, texts: Sequence[str], between: str, option: str) -> dict[str, object]:
    pairs = {}
    for text in texts:
        name, found, value = text.partition(between)
        if not found or not name.strip():
            raise typer.BadParameter(f"should be NAME{between}VALUE", param_hint=option)  # the text may be secret
        pairs[name.strip()] = value.strip()
    return {key: pairs} if pairs else {}


def _missing(file: _ConfigurationFile, name: str) -> int:
    known = [server for key in SERVER_MAPS for server in file.document.members.get(key, Node({})).members]
    print_err(f"{file.path} has no server {name!r}{suggestion(name, known)}")
    return ExitCode.NOT_FOUND
