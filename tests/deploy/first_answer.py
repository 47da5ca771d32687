"""From an empty home to the first answer in a host, with the seconds of each step.

`python -m tests.deploy.first_answer` installs with every dependency from the registry, and prints a table. `borrowed`
takes the dependencies of this environment instead, and needs no network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.deploy.wheel import QUIET, ROOT, build, environment, run
from tests.fakes.clients.host import HOSTS

SERVER: Final = (ROOT / ".cache" / "servers" / "bin" / "mcp-server-time", "--local-timezone", "UTC")
"""The server that the person has: one of the reference servers, as published."""
TOOL: Final = ("time__convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"})
KEY_VARIABLE: Final = "MCPROXY_KEY"


@dataclass
class Walk:
    """One person's home, the steps that were made in it, and the seconds that each took."""

    home: Path
    program: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def step(self, name: str, *command: str | Path, **variables: str) -> str:
        """Runs a program in the home and notes how long it took; returns its stdout."""
        start = time.monotonic()
        try:
            return run(*command, cwd=ROOT if command[0] == sys.executable else self.home, env=self._environ(variables))
        finally:
            self.seconds[name] = time.monotonic() - start

    def add_server(self) -> None:
        self.step("add", self.program, "add", "time", "--yes", "--", *SERVER)

    def connect(self, host: str) -> None:
        self.step("connect", self.program, "connect", host, "--yes")

    def answer(self, host: str, **variables: str) -> str:
        """What the host is answered, by way of what its own file says."""
        tool, arguments = TOOL
        client = (sys.executable, "-W", "ignore", "-m", "tests.fakes.clients.host", host, "mcproxy", tool)
        return self.step("answer", *client, json.dumps(arguments), **variables)

    def undo(self, host: str) -> None:
        self.step("undo", self.program, "connect", host, "--undo", "--yes")

    def files(self) -> dict[str, bytes]:
        """Every file in the home but mcproxy's own state."""
        found = (path for path in self.home.rglob("*") if path.is_file() and ".local/state" not in str(path))
        return {str(path.relative_to(self.home)): path.read_bytes() for path in found}

    def add_key(self, **proxy: object) -> str:
        """Demands a key of callers from now on, at what `proxy` says; returns the key."""
        made = json.loads(self.step("key", self.program, "keys", "add", "me", "--json"))
        file = self.home / ".config" / "mcproxy" / "mcproxy.yaml"
        sections = {"proxy": proxy, "access": made["access"]}
        file.write_text(file.read_text() + "".join(f"{name}: {json.dumps(said)}\n" for name, said in sections.items()))
        return str(made["key"])

    @contextmanager
    def serving(self) -> Iterator[None]:
        """While the gateway runs, from when it listens."""
        with subprocess.Popen(
            [str(self.program), "serve"], cwd=self.home, env=self._environ({}), stderr=subprocess.PIPE, text=True
        ) as gateway:
            try:
                assert gateway.stderr is not None
                log = [gateway.stderr.readline()]
                while "serving" not in log[-1]:
                    log.append(gateway.stderr.readline())
                    assert log[-1], log
                yield
            finally:
                gateway.terminate()
                gateway.communicate(timeout=600)

    def _environ(self, variables: dict[str, str]) -> dict[str, str]:
        return environment(self.home, PATH=f"{self.program.parent}:/usr/bin:/bin", **variables)


def install(wheel: Path, folder: Path, *, borrowed: bool = False) -> Path:
    """Installs the wheel into an empty environment; returns the program."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    if borrowed:
        packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
        Path(packages, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    alone = ("--no-deps",) if borrowed else ()
    run(sys.executable, "-m", "pip", "--python", python, "install", *QUIET, *alone, wheel, cwd=folder)
    return folder / "bin" / "mcproxy"


def table(rows: dict[str, dict[str, float]]) -> str:
    """The seconds of each host's steps as a table in Markdown; all have the same steps."""
    steps = list(next(iter(rows.values())))
    lines = [["host", *steps, "together"], ["---", *("---:" for _ in (*steps, "together"))]]
    for host, seconds in rows.items():
        lines.append([host, *(f"{each:.1f} s" for each in (*seconds.values(), sum(seconds.values())))])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Walks with each host, in a new home each, and prints the table."""
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheel = build(folder)
        for host in HOSTS:
            home = folder / host
            home.mkdir()
            start = time.monotonic()
            walk = Walk(home, install(wheel, folder / f"{host}-venv"), {"install": 0})
            walk.seconds["install"] = time.monotonic() - start
            walk.add_server()
            walk.connect(host)
            sys.stderr.write(f"{host}: {walk.answer(host)}\n")
            rows[host] = walk.seconds
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
