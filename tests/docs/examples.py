"""Runs the examples of a page in order, in an empty folder: its files are written, its commands typed.

A fence says by its first word what it holds, and by the rest what becomes of it:

- `yaml`, `python`, `json`, `text` whose first line is a comment that names a file (`# mcproxy.yaml`) are that file;
- `yaml` is otherwise a configuration that must be valid, but for `yaml other`;
- `console` holds commands after `$`, each followed by what it prints; `…` stands for anything within a line, and a line
  of `…` alone for any lines. A command that ends in `&` is a gateway, which is waited for. `console not run: WHY` is
  shown, and not run.

Port 8000 is another here, so that pages run beside each other. `<!-- continues: PAGE -->` gives a page the files of
another.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.ports import free_port
from tests.timeouts import GUARD

FENCE: Final = re.compile(r"^( *)```([\w-]*)[ ]*([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
NAMED: Final = re.compile(r"(?:#|//) ([\w./-]+\.\w+)\n")
ANYTHING: Final = "…"
CONTINUES: Final = re.compile(r"<!-- continues: (\S+) -->")
DEFAULT_PORT: Final = "8000"


@dataclass(frozen=True)
class Fence:
    language: str
    note: str
    text: str
    line: int
    """Where its text begins, from 1."""

    @property
    def file(self) -> str | None:
        """The file that it is, where its first line says so."""
        found = NAMED.match(self.text)
        return found[1] if found else None

    @property
    def runs(self) -> bool:
        return self.language == "console" and not self.note.startswith("not run")


@dataclass(frozen=True)
class Command:
    text: str
    printed: str
    line: int


def fences(page: str) -> Iterator[Fence]:
    for found in FENCE.finditer(page):
        indent, language, note, text = found.groups()
        plain = "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
        yield Fence(language, note, plain, page.count("\n", 0, found.start(4)) + 1)


def files_before(page: Path) -> Iterator[Fence]:
    """The files of the pages that this one goes on from."""
    for found in CONTINUES.finditer(page.read_text()):
        before = page.parent / found[1]
        yield from files_before(before)
        yield from (fence for fence in fences(before.read_text()) if fence.file is not None)


def commands(fence: Fence) -> Iterator[Command]:
    """The commands of a `console`, with what each prints. A line that ends in a backslash goes on in the next."""
    text, begun = "", 0
    printed: list[str] = []
    for number, line in enumerate(fence.text.splitlines(), fence.line):
        if text.endswith("\\"):
            text = text[:-1] + line.lstrip("> ")
        elif line.startswith("$ "):
            if text:
                yield Command(text, "\n".join(printed), begun)
            text, printed, begun = line[2:], [], number
        else:
            printed.append(line)
    if text:
        yield Command(text, "\n".join(printed), begun)


def is_as_shown(shown: str, printed: str) -> bool:
    """Whether what a command printed is what the page shows, by lines; trailing spaces do not count."""
    pieces = []
    for line in shown.rstrip().splitlines():
        if line.strip() == ANYTHING:
            pieces.append("(?:.*\n)*?")
        else:
            pieces.append(".*".join(re.escape(part.rstrip()) for part in line.split(ANYTHING)) + r"[^\S\n]*\n")
    return re.fullmatch("".join(pieces), printed.rstrip() + "\n" * bool(printed.strip())) is not None


class Shell:
    """A folder, with a port in place of 8000, and what runs there in the background."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = str(free_port())
        self._background: list[subprocess.Popen[bytes]] = []
        home = folder / ".home"
        home.mkdir()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "COLUMNS": "200"}

    def write(self, file: str, text: str) -> None:
        target = self._folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self._here(text))

    def run(self, command: Command) -> str:
        """What it prints, with the page's port."""
        text = self._here(command.text)
        if text.endswith("&"):
            return self._begin(f"{text.removesuffix('&').strip()} --port {self._port}")
        done = subprocess.run(
            ["bash", "-c", text], cwd=self._folder, env=self._environment, check=False, timeout=GUARD,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.stdout.decode().replace(self._port, DEFAULT_PORT)

    def close(self) -> None:
        for process in self._background:
            process.send_signal(signal.SIGTERM)
        for process in self._background:
            assert process.wait(GUARD) == 0

    def _here(self, text: str) -> str:
        return re.sub(rf"\b{DEFAULT_PORT}\b", self._port, text)

    def _begin(self, text: str) -> str:
        log = (self._folder / "gateway.log").open("wb")
        process = subprocess.Popen(
            ["bash", "-c", f"exec {text}"], cwd=self._folder, env=self._environment, stdout=log, stderr=log
        )
        self._background.append(process)
        until = time.monotonic() + GUARD
        while time.monotonic() < until and process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz"):
                    return ""
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"{text} did not begin to serve: {(self._folder / 'gateway.log').read_text()}")


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    running = Shell(folder)
    try:
        yield running
    finally:
        running.close()
