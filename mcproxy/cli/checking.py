"""`mcproxy check`: whether the configuration is valid and fits this machine. Connects to nothing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from mcproxy.cli.output import number_of, print_err, print_json, print_out
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.loading import Configuration
from mcproxy.configuration.problems import ConfigurationError, PathKey, Problem, problem_json
from mcproxy.configuration.references import meant
from mcproxy.upstream.child.command import environment, locate
from mcproxy.upstream.link import Unreachable


def check(configuration: Configuration, *, strict: bool, as_json: bool) -> int:
    """Prints doubtful settings of a valid configuration; with `strict`, they make it invalid."""
    warnings = [*configuration.warnings, *machine_problems(configuration)]
    valid = not (strict and warnings)
    if as_json:
        print_json(check_result(configuration, warnings, valid=valid))
    else:
        print_warnings(warnings)
        if valid:
            doubts = f", {number_of(len(warnings), 'warning')}" if warnings else ""
            servers = number_of(len(_enabled(configuration)), "server")
            hint = "" if configuration.settings.upstreams else "; `mcproxy add` or `mcproxy import` adds some"
            print_out(f"{configuration.path} is valid: {servers}{doubts}{hint}")
    return ExitCode.OK if valid else ExitCode.INPUT


def check_result(
    configuration: Configuration, warnings: Iterable[Problem], reports: Sequence[object] = (), *, valid: bool
) -> dict[str, object]:
    """What `mcproxy check --json` prints; of an invalid configuration, `print_invalid`."""
    return {
        "valid": valid,
        "problems": [],
        "warnings": [problem_json(warning) for warning in warnings],
        "upstreams": _enabled(configuration),
        "reports": reports,
    }


def print_invalid(error: ConfigurationError) -> None:
    """Prints the problems of an invalid configuration as JSON."""
    problems = [problem_json(problem) for problem in error.problems]
    print_json({"valid": False, "problems": problems, "warnings": [], "upstreams": [], "reports": []})


def _enabled(configuration: Configuration) -> list[str]:
    return [upstream.name for upstream in configuration.settings.upstreams if upstream.enabled]


def print_warnings(warnings: Sequence[Problem]) -> None:
    for warning in warnings:
        print_err(f"warning: {warning}")


def unmatched(
    configuration: Configuration, tools: Mapping[str, Collection[str]], exposed: Mapping[str, Collection[str]]
) -> Iterator[Problem]:
    """What the configuration says of tools that do not exist (requirement R86).

    `tools` are the upstreams' own names of theirs, by upstream; `exposed` the names that callers see, by endpoint. What
    is not known there is not judged.
    """
    settings = configuration.settings
    for upstream in settings.upstreams:
        known = tools.get(upstream.name)
        for name in upstream.tools.overrides if known is not None else ():
            if known is not None and name not in known:
                sentence = f"changes nothing: the server has no tool {name!r}{meant(name, known)}"
                yield configuration.server_problem(sentence, upstream.name, "tools", "overrides", name)
    for number, hook in enumerate(settings.access.hooks):
        concerned = [
            spec.name
            for spec in settings.upstreams
            if spec.enabled and any(fnmatchcase(spec.name, glob) for glob in hook.upstreams)
        ]
        if "tools/call" in hook.on and concerned and tools.keys() >= set(concerned):
            own = {name for upstream in concerned for name in tools[upstream]}
            yield from _unmatched(configuration, hook.tools or (), own, "access", "hooks", number, "tools")
    for endpoint, names in exposed.items():
        pinned = settings.endpoints[endpoint].pinned
        yield from _unmatched(configuration, pinned, names, "endpoints", endpoint, "pinned")


def _unmatched(
    configuration: Configuration, globs: Iterable[str], names: Collection[str], *path: PathKey
) -> Iterator[Problem]:
    for index, glob in enumerate(globs):
        if not any(fnmatchcase(name, glob) for name in names):
            yield configuration.problem(f"no tool matches {glob!r}{meant(glob, names)}", *path, index)


def machine_problems(configuration: Configuration) -> Iterator[Problem]:
    """Things that the configuration needs and this machine lacks: commands, folders, the lock file."""
    yield from _missing_commands(configuration)
    yield from missing_files(configuration)


def missing_files(configuration: Configuration) -> Iterator[Problem]:
    """A lock file that is to be enforced, and a folder that the audit log is to be written to."""
    access = configuration.settings.access
    pins, audit = access.pins, access.audit
    if pins.mode != "off" and pins.file is not None and not Path(pins.file).exists():
        sentence = f"there is no lock file {pins.file}, so nothing is approved: `mcproxy lock` writes it"
        yield configuration.problem(sentence, "access", "pins", "file")
    if audit.file is not None and not os.access(folder := Path(audit.file).parent, os.W_OK | os.X_OK):
        sentence = f"nothing can be written to the folder {folder}: make it, or give it to the user that runs mcproxy"
        yield configuration.problem(sentence, "access", "audit", "file")


def _missing_commands(configuration: Configuration) -> Iterator[Problem]:
    """Commands and working folders that this machine does not have."""
    doubtful = {warning.path for warning in configuration.warnings}
    for upstream in configuration.settings.upstreams:
        command, key = upstream.command, "command"
        if upstream.headers_command:
            command, key = upstream.headers_command[0], "headers_command"
        if command is None or not upstream.enabled:
            continue
        try:
            locate(command, upstream.cwd, environment(upstream, os.environ))
        except Unreachable as unreachable:
            key = key if upstream.cwd is None or os.path.isdir(upstream.cwd) else "cwd"
            problem = configuration.server_problem(str(unreachable), upstream.name, key)
            if problem.path not in doubtful:
                yield problem
