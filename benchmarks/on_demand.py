"""Servers of npm that idle: their memory with and without `start: on_demand`, and how long the first call waits.

Each is `npx mcp-server-everything`, as most configurations have it: npx, a shell and Node.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks import asking
from benchmarks.readings import SETTLE, Reading, Unit
from benchmarks.running import ROOT, Cores, NotStarted, alone, running
from benchmarks.usage import memory
from mcproxy.protocol.eras import Era
from tests.ports import free_port
from tests.processes import descendants

NODE: Final = ROOT / "tests/system/node"
NPX: Final = ("npx", "--no-install", "mcp-server-everything")
ON_DEMAND: Final = {"start": "on_demand"}
PATIENCE: Final = 120.0
"""Seconds for all servers to be listed, and for the lock file to be written."""
MOST_TIMES: Final = 3
"""First calls that are measured, each of a server of its own."""


def idle_servers(cores: Cores, servers: int, command: Sequence[str] = NPX) -> Iterator[Reading]:
    """Raises NotStarted where npm's packages are not set up."""
    if shutil.which(command[0]) is None or not (NODE / "node_modules").exists():
        raise NotStarted("npm's packages are not set up: run `make test`")
    with alone(), TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, command, servers, ON_DEMAND)
        lock = [sys.executable, "-m", "mcproxy", "lock", "--config", str(folder / "mcproxy.json")]
        subprocess.run(lock, check=True, capture_output=True, timeout=PATIENCE, cwd=ROOT)
        with gateway(folder, command, servers, {}, cores) as (pid, port):
            list_all(port, servers)
            yield _memory(pid, f"memory, {servers} npx servers that always run")
        with gateway(folder, command, servers, ON_DEMAND, cores) as (pid, port):
            list_all(port, servers)
            assert not descendants(pid), "lists come from the lock"
            yield _memory(pid, f"memory, {servers} npx servers on demand, all idle")
            times = range(min(servers, MOST_TIMES))
            for what in ("first", "second"):
                waits = median(_wait(port, number) for number in times)
                yield Reading(f"{what} call of an npx server on demand", waits * 1e3, Unit.MILLISECONDS, "call")


def write(folder: Path, command: Sequence[str], servers: int, settings: dict[str, Any], port: int = 0) -> None:
    """The configuration of a gateway in front of so many servers, all alike."""
    server = {"command": command[0], "args": command[1:], "cwd": str(NODE), **settings}
    document = {
        "mcpServers": {f"s{number}": server for number in range(servers)},
        "proxy": {"port": port, "watch": False, "list_wait": PATIENCE},
        "admin": {"socket": False},
    }
    (folder / "mcproxy.json").write_text(json.dumps(document))


@contextmanager
def gateway(
    folder: Path, command: Sequence[str], servers: int, settings: dict[str, Any], cores: Cores
) -> Iterator[tuple[int, int]]:
    """The process id and the port of a gateway. Its children get both sides' cores."""
    port = free_port()
    write(folder, command, servers, settings, port)
    serve = [sys.executable, "-m", "mcproxy", "serve", "--config", str(folder / "mcproxy.json")]
    state = {"XDG_STATE_HOME": str(folder / "state")}
    with running(serve, cores.proxy | cores.others, port, folder / "log", state) as pid:
        yield pid, port


def list_all(port: int, servers: int) -> None:
    """Returns once the last server's tools are listed. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE
    for number in range(servers):
        while True:
            try:
                asking.answered(port, asking.Ask("tools/list", {}, f'"s{number}__echo"', 0), Era.STATELESS)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
            else:
                break


def _memory(pid: int, name: str) -> Reading:
    time.sleep(SETTLE)
    return Reading(name, memory(pid).proportional / 2**20, Unit.MEBIBYTES, "gateway and servers (Pss)")


def _wait(port: int, number: int) -> float:
    echo = {"name": f"s{number}__echo", "arguments": {"message": "bench"}}
    began = time.monotonic()
    asking.answered(port, asking.Ask("tools/call", echo, "bench", 0), Era.STATELESS)
    return time.monotonic() - began
