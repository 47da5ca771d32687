"""`mcproxy import`: prints hosts' servers as a configuration, or writes it, with the secrets in `.env` beside it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import typer

from mcproxy.cli.output import number_of, print_err, print_out
from mcproxy.cli.setup.connecting import own_entries
from mcproxy.cli.setup.files import existing_text, write
from mcproxy.configuration.expansion import parse_env_file
from mcproxy.configuration.hosts.importing import Imported, import_servers
from mcproxy.configuration.loading import ENV_FILE


def import_(sources: Sequence[str], output: Path | None, host: str | None) -> None:
    """Prints or writes the configuration, and says which steps remain. Raises ConfigurationError."""
    if output is None:
        imported = import_servers(sources, Path.cwd(), connected=own_entries(), host=host)
        print_out(imported.render().rstrip(), lines=True)
    else:
        env_file = output.absolute().parent / ENV_FILE
        before = existing_text(env_file) or ""
        existing = parse_env_file(before)
        imported = import_servers(sources, Path.cwd(), existing=existing, connected=own_entries(), host=host)
        _write_new(output, imported.render())
        add_variables(env_file, before, imported.render_env())
    for line in import_summary(imported, output):
        print_err(line)


def add_variables(env_file: Path, before: str, lines: str) -> None:
    """Appends lines to `.env`, which its owner alone can read if it is new. Raises ConfigurationError."""
    if lines:
        write(env_file, before + ("\n" if before and not before.endswith("\n") else "") + lines)
        print_err(f"secrets were written to {env_file}")


def import_summary(imported: Imported, output: Path | None) -> list[str]:
    """What was imported, what was not, and which variables to set. Shows no values."""
    sources = ", ".join(map(str, imported.sources))
    lines = [
        f"{number_of(len(imported.servers), 'server')} from {sources}" + (f" written to {output}" if output else "")
    ]
    lines += imported.notes
    wanted = imported.missing if output else imported.variables
    if wanted:
        lines.append("set these variables to the values that the host's file has:")
        lines += [f"  {name}  ({place})" for name, place in wanted.items()]
    if inherited := imported.inherited:
        lines.append("these come from your environment and files whenever the gateway starts:")
        lines += [f"  {what}  (sent to {', '.join(names)})" for what, names in inherited.items()]
    logins = [name for name, server in imported.servers.items() if "oauth" in server]
    if logins:
        lines.append("these want an OAuth login, which hosts do not share; log in here once:")
        lines += [f"  mcproxy login {shlex.quote(name)}" for name in logins]
    return lines


def _write_new(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        sentence = f"{path} is there already: name a new file; several hosts are imported at once"
        raise typer.BadParameter(sentence, param_hint="--output") from error
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}", param_hint="--output") from error
