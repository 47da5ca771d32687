"""Read and replace small text files of people: whole or not at all, with their mode, through symbolic links."""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import typer

from mcproxy.cli.output import print_err, print_out
from mcproxy.configuration.problems import ConfigurationError, Problem


def existing_text(path: Path) -> str | None:
    """The text of a file, byte for byte; None where there is none. Raises ConfigurationError."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _problem(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _problem(path, "is not UTF-8: save it in that encoding") from error


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Replaces a file, or makes it with `mode`, and its folders. Raises ConfigurationError."""
    target = path.resolve()  # settings are often symbolic links into a folder of dotfiles
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            mode = target.stat().st_mode & 0o7777
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, delete=False) as file:
            try:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).chmod(mode)
                Path(file.name).replace(target)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise _problem(path, f"cannot be written: {error.strerror}") from error


def confirmed(path: Path, before: str, after: str, *, yes: bool, dry_run: bool) -> bool:
    """Shows what changes in a file, and asks whether it may be written."""
    for line in _preview(path, before, after):
        print_out(line)
    if yes or dry_run:
        return not dry_run
    if not sys.stdin.isatty():
        print_err("nothing was written: add --yes to write it")
        return False
    return typer.confirm("Write it?", default=True, err=True)


def _preview(path: Path, before: str, after: str) -> Iterator[str]:
    """The lines that differ, and none around them: a neighbour's line may hold a token."""
    # The last neighbour gets a comma when something is put behind it: no change that people need to see.
    old, new = ([line.rstrip().rstrip(",") for line in text.splitlines()] for text in (before, after))
    lines = (before.splitlines(), after.splitlines())
    yield from (f"--- {path}", f"+++ {path}")
    for kind, start, end, put, last in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if kind != "equal":
            yield from (f"-{line}" for line in lines[0][start:end])
            yield from (f"+{line}" for line in lines[1][put:last])


def _problem(path: Path, sentence: str) -> ConfigurationError:
    return ConfigurationError([Problem(str(path), sentence)])
