"""`mcproxy lock`: record what upstreams offer as approved, or report how it differs from what was approved.

Connects to every upstream, reads the files of its skills for the scan, and calls nothing. Keeps the approved
definitions of an upstream that does not answer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import typer
from msgspec.structs import replace

from mcproxy.access.pins import differences
from mcproxy.access.scanning import DefinitionFinding, scan
from mcproxy.app import App, running
from mcproxy.cli.access.skill_texts import skill_texts
from mcproxy.cli.output import print_err, print_out
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.lock import FILE_NAME, read_lock, render
from mcproxy.settings import Settings
from mcproxy.settings.access.pins import Approved, Lock, PinSettings


class LockMode(Enum):
    """What is done where upstreams offer something else than was approved; every mode prints the differences."""

    WRITE = "write"
    CHECK = "check"
    """Fail if anything differs from what was approved."""
    DIFF = "diff"


@dataclass(frozen=True, slots=True)
class Offered:
    """The definitions on offer, and the names of upstreams that could not be asked."""

    lock: Lock
    silent: tuple[str, ...]
    findings: tuple[DefinitionFinding, ...] = ()
    """What a person should look at before approving it."""


async def lock(settings: Settings, folder: Path, mode: LockMode) -> int:
    """Exits with FAILED where an upstream could not be asked, and for CHECK, where something changed.

    `folder` is that of the configuration. Raises ConfigurationError for the lock file.
    """
    path = Path(settings.access.pins.file or folder / FILE_NAME)
    before = read_lock(path)
    found = await findable_definitions(settings, before)
    changes = list(differences(before, found.lock))
    for change in changes:
        print_out(change)
    for finding in found.findings:
        print_err(f"look at this: {finding}")
    for name in found.silent:
        print_err(f"{name}: could not be asked; what was approved of it is kept")
    if mode is LockMode.WRITE:
        _write(path, render(found.lock))
        print_err(f"wrote {path}")
    failed = found.silent or (mode is LockMode.CHECK and changes)
    return ExitCode.FAILED if failed else ExitCode.OK


async def findable_definitions(settings: Settings, before: Lock) -> Offered:
    """What a gateway without pins finds; a disabled upstream keeps what was approved."""
    access = settings.access.model_copy(update={"pins": PinSettings()})
    async with running(settings.model_copy(update={"access": access})) as app:
        await app.settled()
        now = app.offered()
        scanned = await definition_findings(settings, app, now)
    configured = {spec.name for spec in settings.upstreams}
    kept = {name: approved for name, approved in before.items() if name in configured}
    on_demand = {spec.name for spec in settings.upstreams if spec.start == "on_demand"}
    known = {
        name: approved if name in on_demand else replace(approved, manifest=None)
        for name, approved in now.items()
        if approved is not None
    }
    silent = tuple(name for name, approved in now.items() if approved is None)
    return Offered({**kept, **known}, silent, tuple(scanned))


async def definition_findings(
    settings: Settings, app: App, offered: Mapping[str, Approved | None]
) -> list[DefinitionFinding]:
    """What a scan of all definitions finds, and of the files of skills, where upstreams answered."""
    known = {name: approved for name, approved in offered.items() if approved is not None}
    seconds = max((spec.timeouts.list for spec in settings.upstreams), default=0)
    texts = await skill_texts(app.fleet.upstreams, known, seconds)
    return scan(known, {spec.name: spec.prefix for spec in settings.upstreams}, texts)


def _write(path: Path, text: str) -> None:
    """Replaces the file in one step: a gateway may be watching it."""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="ascii", dir=path.parent, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}", param_hint="access.pins.file") from error
