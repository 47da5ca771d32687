"""`mcproxy doctor`: what is wrong with the configuration, this machine or the gateway that runs, each with a remedy."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mcproxy import rlimits
from mcproxy.cli.checking import machine_problems
from mcproxy.cli.listening import obstacles
from mcproxy.cli.output import print_err, print_json, print_out
from mcproxy.cli.running.client import NotRunning, RefusedByGateway, RunningGateway
from mcproxy.cli.running.operating import AUDIT_FAILING, is_well
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.loading import Configuration, load_configuration
from mcproxy.configuration.problems import ConfigurationError
from mcproxy.service import state
from mcproxy.settings import UpstreamSettings
from mcproxy.settings.secret_values import masked_arguments

FEW_FILES: Final = 4096
"""Open files below which a busy gateway may run out: each client takes one."""


_CORRECT: Final = "correct the file, or give this shell the variables that the gateway has"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Something wrong, and what to do about it."""

    where: str
    sentence: str
    remedy: str = ""


def doctor(path: Path, *, as_json: bool) -> int:
    """Prints each diagnosis; FAILED where there is one, INPUT where the configuration is not valid."""
    configuration: Configuration | None = None
    try:
        configuration = load_configuration(path)
        diagnoses = [*_of_configuration(configuration)]
    except ConfigurationError as error:
        diagnoses = [Diagnosis("configuration", str(problem), _CORRECT) for problem in error.problems]
    diagnoses += [*_of_machine(), *_of_gateway(path, configuration)]
    failed = ExitCode.FAILED if diagnoses else ExitCode.OK
    code = failed if configuration is not None else ExitCode.INPUT
    if as_json:
        print_json([{"where": f.where, "sentence": f.sentence, "remedy": f.remedy} for f in diagnoses])
    else:
        for diagnosis in diagnoses:
            print_out(f"{diagnosis.where}: {diagnosis.sentence}")
            if diagnosis.remedy:
                print_out(f"    {diagnosis.remedy}")
        if not diagnoses:
            print_out("nothing is wrong that can be seen from here")
    return code


def _of_configuration(configuration: Configuration) -> Iterator[Diagnosis]:
    for warning in (*configuration.warnings, *machine_problems(configuration)):
        yield Diagnosis("configuration", str(warning))


def _of_machine() -> Iterator[Diagnosis]:
    files = rlimits.hard_limit()
    if 0 < files < FEW_FILES:
        yield Diagnosis("machine", f"at most {files} files may be open at once", "raise the hard limit (ulimit -Hn)")
    try:
        folder = state.state_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError) as error:
        yield Diagnosis("machine", f"state cannot be kept: {error}", "set XDG_STATE_HOME to a folder of yours")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Diagnosis("machine", f"{folder} cannot be written", f"chown it to the user that runs mcproxy: {folder}")


def _of_gateway(path: Path, configuration: Configuration | None) -> Iterator[Diagnosis]:
    """What the gateway that runs says, whether or not this shell can read its configuration."""
    try:
        gateway = RunningGateway(path)
        found = gateway.get("/status")
    except (NotRunning, RefusedByGateway) as error:
        print_err(str(error))
        for problem in obstacles(configuration) if configuration is not None else ():
            yield Diagnosis("machine", str(problem))
        return
    if gateway.others:
        yield Diagnosis(
            "gateway",
            f"{gateway.others} more run with this configuration, each with servers of its own",
            "connect hosts to the one at its URL: `mcproxy connect HOST`",
        )
    if found["audit_failing"]:
        remedy = "make room on its disk, or correct `access.audit.file`; the gateway's log says why"
        yield Diagnosis("gateway", AUDIT_FAILING, remedy)
    ways = {} if configuration is None else {spec.name: spec.way for spec in configuration.settings.upstreams}
    for upstream in found["upstreams"]:
        if way := ways.get(upstream["name"]):
            print_err(f"server {upstream['name']}: reached {way}")
        if not is_well(upstream):
            yield Diagnosis(
                f"server {upstream['name']}",
                upstream["error"] or upstream["state"],
                _remedy_here(upstream, configuration),
            )


def _remedy_here(upstream: dict[str, Any], configuration: Configuration | None) -> str:
    if configuration is None:
        return _remedy((), upstream)
    return _masked(_remedy(configuration.settings.upstreams, upstream), configuration.secrets)


def _masked(text: str, secrets: Collection[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "...")
    return text


def _remedy(specs: Sequence[UpstreamSettings], upstream: dict[str, Any]) -> str:
    """The first thing to do about an upstream that is not connected, by the kind of its failure."""
    name = shlex.quote(upstream["name"])
    spec = next((spec for spec in specs if spec.name == upstream["name"]), None)
    match upstream["failure"]:
        case "login":
            return f"log in: mcproxy login {name}"
        case "rejected":
            return "compare its `url`, `type` and credentials with what its documentation says"
        case "timeout":
            return f"see what it waits for (mcproxy logs {name}), or raise `timeouts.connect`"
        case "internal":
            return "this is a fault of mcproxy: report it, with its log"
        case _ if spec is not None and spec.command is not None:
            return f"run it by hand: {_by_hand(spec)}"
        case _:
            return f"see whether it runs, then: mcproxy retry {name}"


def _by_hand(spec: UpstreamSettings) -> str:
    """The command of a child, without its environment and the secrets in its arguments."""
    folder = f"cd {shlex.quote(spec.cwd)} && " if spec.cwd else ""
    return folder + shlex.join([spec.command or "", *masked_arguments(spec.args, "...")])
