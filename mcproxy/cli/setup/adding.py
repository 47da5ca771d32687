"""`mcproxy add`, `remove`, `enable` and `disable`: one server of the configuration's file, its comments kept.

What would not be valid afterwards is not written. A gateway that runs takes the file over by itself.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import typer
from msgspec.structs import replace

from mcproxy.cli.checking import print_warnings
from mcproxy.cli.output import print_err, print_out
from mcproxy.cli.runtime import ExitCode, run, set_up_logs
from mcproxy.cli.setup.files import confirmed, existing_text, write
from mcproxy.cli.setup.importing import add_variables
from mcproxy.cli.setup.plan import Answers, Given, answered, check_choice, plan, shown_values, unanswered
from mcproxy.cli.terminal import printable_line
from mcproxy.configuration.documents.parsing import parse_document
from mcproxy.configuration.documents.tree import Node, follow
from mcproxy.configuration.editing import TextEdit, put, remove
from mcproxy.configuration.expansion import parse_env_file
from mcproxy.configuration.hosts.importing import Imported, names_a_file, without_secrets
from mcproxy.configuration.hosts.references import reference
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
from mcproxy.configuration.packages import bundle, server_json
from mcproxy.configuration.packages.bundle import SUFFIXES, unpack
from mcproxy.configuration.packages.offer import Input, Offer, Value, Values, Variable
from mcproxy.configuration.problems import ConfigurationError, Problem
from mcproxy.configuration.references import suggestion
from mcproxy.service.state import state_folder
from mcproxy.settings.secret_values import looks_secret

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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line says about a new server."""

    name: str
    target: Sequence[str]
    env: Sequence[str] = ()
    env_from: Sequence[str] = ()
    headers: Sequence[str] = ()
    values: Sequence[str] = ()


def add_server(config: Path | None, wanted: Wanted, *, connect: bool, yes: bool, dry_run: bool) -> NoReturn:
    """Shows what would run and what it would get; asks; tries it; and writes it after another question.

    Exits with FAILED if the server does not answer. `dry_run` shows what it can and does nothing else.
    """
    file, name = _file(config), wanted.name
    if file.has(name):
        raise ConfigurationError([Problem(str(file.path), "is there already: choose another name", None, (name,))])
    before = existing_text(file.path.absolute().parent / ENV_FILE) or ""
    imported = Imported(parse_env_file(before), environ=os.environ)
    offer = _offer(wanted.target, wanted)
    answers = {} if offer is None else answered(offer, wanted.values, wanted.env_from)
    shown = _typed(wanted) if offer is None else offer.entry(shown_values(offer, answers))
    folder = file.path.absolute().parent
    moved = Imported(parse_env_file(before), environ=os.environ)
    for line in plan(name, without_secrets(moved, name, shown, folder), offer, answers, moved.variables):
        print_out(line)
    if offer is not None and not dry_run:
        answers = {**answers, **_prompted(unanswered(offer, answers))}
    missing = [] if offer is None else unanswered(offer, answers)
    if missing:  # a dry run, which asks nothing
        raise typer.Exit(ExitCode.OK)
    entry = _typed(wanted) if offer is None else offer.entry(_values(imported, name, offer, answers))
    server = without_secrets(imported, name, entry, folder)
    after = file.changed(put(file.text, str(file.path), file.server_path(name), server))
    configuration = interpret(file.path, parse_document(after, str(file.path)), {**os.environ, **imported.values})
    set_up_logs(configuration, quiet=True)
    print_warnings([warning for warning in configuration.warnings if warning.path[:2] == file.server_path(name)])
    if dry_run:
        confirmed(file.path, file.text, after, yes=yes, dry_run=True)
        raise typer.Exit(ExitCode.OK)
    if connect and not yes and not _consents(server):
        raise typer.Exit(ExitCode.INPUT)

    async def tried_and_written() -> int:
        if connect and not await _answers(configuration, name):
            print_err("nothing was written; --no-connect writes it all the same")
            return ExitCode.FAILED
        if not confirmed(file.path, file.text, after, yes=yes, dry_run=False):
            return ExitCode.INPUT
        if offer is not None and offer.bundle is not None:
            unpack(offer.bundle)
        add_variables(folder / ENV_FILE, before, imported.render_env())
        write(file.path, after, mode=0o644)
        print_err(f"{file.path} has {name} now")
        if configuration.settings.access.pins.mode != "off":
            print_err("what it offers is not approved yet (access.pins): `mcproxy lock` approves it")
        return ExitCode.OK

    with _unpacked(offer, connect=connect) as keep:

        async def kept() -> int:
            code = await tried_and_written()
            if code == ExitCode.OK:
                keep()
            return code

        run(kept())


@contextmanager
def _unpacked(offer: Offer | None, *, connect: bool) -> Iterator[Callable[[], None]]:
    """Unpacks the bundle of an offer for a try; takes it away again unless it is kept."""
    bundle = None if offer is None else offer.bundle
    if bundle is None or not connect or not unpack(bundle):
        yield lambda: None
        return
    kept: list[bool] = []
    try:
        yield lambda: kept.append(True)
    finally:
        if not kept:
            shutil.rmtree(bundle.target, ignore_errors=True)


def _consents(server: Mapping[str, object]) -> bool:
    """Asks whether the server may be tried."""
    if not sys.stdin.isatty():
        print_err("nothing was run and nothing was written: add --yes to do it")
        return False
    question = "Connect to it?" if "url" in server else "Run this on your machine?"
    return typer.confirm(question, default=False, err=True)


def _prompted(missing: Sequence[Input]) -> dict[str, Given]:
    """Asks for the values that are missing. Raises BadParameter where nobody can be asked."""
    if missing and not sys.stdin.isatty():
        names = " ".join(f"--set {shlex.quote(f'{input.name}=VALUE')}" for input in missing)
        sentence = f"has no value yet; give it with {names}, or with --env-from NAME from your environment"
        raise typer.BadParameter(printable_line(sentence), param_hint=printable_line(missing[0].name))
    given: dict[str, Given] = {}
    for input in missing:
        hint = f" ({', '.join(input.choices)})" if input.choices else ""
        question = printable_line(f"{input.name}{hint}")
        value = typer.prompt(question, hide_input=input.secret, err=True)
        check_choice(input, value)
        given[input.name] = Given((value,))
    return given


def _values(imported: Imported, server: str, offer: Offer, answers: Answers) -> Values:
    """The values of an offer's inputs; a secret is a variable, which `imported` then has."""
    found: dict[str, Sequence[Value]] = {}
    for input in offer.inputs:
        match answers.get(input.name):
            case Given(values):
                secret = [input.secret or looks_secret(input.name, value) for value in values]
                found[input.name] = [
                    Variable(imported.secret(server, input.name, f"{server}: {input.name}", value)) if hide else value
                    for value, hide in zip(values, secret, strict=True)
                ]
            case Variable() as variable:
                found[input.name] = [variable]
            case None if input.default is not None:
                found[input.name] = input.default
            case None:
                pass
    return found


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


def _offer(target: Sequence[str], wanted: Wanted) -> Offer | None:
    """The offer in a publisher's file; None for a command or a URL. Writes nothing."""
    path = target[0]
    if len(target) > 1 or wanted.env or wanted.headers:
        return None
    if path.endswith(SUFFIXES):
        return bundle.offer_of(Path(path), state_folder() / "bundles")
    return server_json.offer_of(read_document(Path(path)).plain, path) if path.endswith(".json") else None


def _typed(wanted: Wanted) -> dict[str, object]:
    """An entry of `mcpServers` from the command line alone."""
    command, *arguments = wanted.target
    if wanted.values:
        raise typer.BadParameter("is for a server.json or a bundle; a command takes --env", param_hint="--set")
    if _HOST_AND_PORT.match(command) and not arguments:
        raise typer.BadParameter(f"is a URL without its scheme: write http://{command}", param_hint="TARGET")
    if "://" in command and not arguments:
        if wanted.env or wanted.env_from:
            raise typer.BadParameter("is for a command; a URL takes --header", param_hint="--env")
        return {"url": command, **_pairs("headers", wanted.headers, ":", "--header")}
    if wanted.headers:
        raise typer.BadParameter("is for a URL; a command takes --env", param_hint="--header")
    server = {"command": command, **({"args": arguments} if arguments else {})}
    # Hosts start the gateway in other folders.
    cwd = {"cwd": str(Path.cwd())} if names_a_file(server, Path.cwd()) else {}
    named = (text.partition("=") for text in wanted.env_from)
    env = [*wanted.env, *(f"{name}={reference(variable or name)}" for name, _, variable in named)]
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
