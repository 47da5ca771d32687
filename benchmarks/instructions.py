"""Counts the instructions of one request through a proxy: `python -m benchmarks.instructions [--proxy P] [NAME ...]`.

Callgrind counts what a program does in user mode, the same on a busy machine as on a quiet one, so that a change of one
percent shows. It sees neither the kernel nor a cache that misses: `make bench` decides. NAME is a part of a workload's.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.asking import NUMBER
from benchmarks.load import Plan
from benchmarks.proxies import MCPROXY, PROXIES, Program, Proxy, Scene
from benchmarks.rounds import available_cores, plan, scene, upstream
from benchmarks.running import Cores, NotStarted, end_on_sigterm, running, split
from benchmarks.workloads import SPREAD, WORKLOADS, Workload

CONNECTIONS: Final = 17
"""At most: more make a run longer. Odd, so that each connection carries requests of each session."""
WARM_UP: Final = 20 * CONNECTIONS
"""Requests before those that are counted."""
COUNTED: Final = 40 * CONNECTIONS


class Client:
    """Connections that take turns: all ask, then all are answered, as a proxy under load finds them."""

    def __init__(self, planned: Plan, connections: int, stack: ExitStack) -> None:
        self._plan = planned
        self._number = 100_000_000
        self._connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", planned.port))) for _ in range(connections)
        ]

    def ask(self, requests: int) -> None:
        """Raises AssertionError where an answer is not the one expected."""
        for _ in range(requests // len(self._connections)):
            for connection in self._connections:
                self._number += 1
                text = self._plan.requests[self._number % len(self._plan.requests)]
                connection.sendall(text.replace(NUMBER, str(self._number)).encode())
            for connection in self._connections:
                answer = _answer(connection)
                assert self._plan.mark in answer, answer[:500]


def _answer(connection: socket.socket) -> str:
    """One response, whole: with a length, or in chunks."""
    data = connection.recv(1 << 20)
    while not is_whole(data):
        more = connection.recv(1 << 20)
        assert more, data
        data += more
    return data.decode()


def is_whole(data: bytes) -> bool:
    head, end, body = data.partition(b"\r\n\r\n")
    if b"\r\nTransfer-Encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
    return bool(end) and len(body) >= int(length or 0)


@contextmanager
def counting(proxy: Proxy, stage: Scene, cores: Cores) -> Iterator[int]:
    """The process id of a proxy that runs under callgrind, which does not count yet. Raises NotStarted."""
    stage.folder.mkdir()
    program = under_callgrind(proxy.start(stage), stage.folder)
    with running(program.command, cores.proxy, stage.port, stage.folder / "log", program.environment) as pid:
        yield pid


def under_callgrind(program: Program, folder: Path) -> Program:
    tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / 'callgrind.out'}"]
    return Program([*tool, *program.command], program.environment)


def instructions(workload: Workload, name: str, cores: Cores, lines: int) -> tuple[int, str]:
    """Instructions of one request, and what most of them are spent in. Raises NotStarted."""
    proxy = PROXIES[name]
    with TemporaryDirectory() as folder, upstream(workload.tools, Path(folder), cores) as behind, ExitStack() as stack:
        stage = scene(workload, Path(folder) / "proxy", behind, cores)
        pid = stack.enter_context(counting(proxy, stage, cores))
        client = Client(plan(workload, proxy, stage.port), min(workload.connections, CONNECTIONS), stack)
        client.ask(WARM_UP)
        _control("--instr=on", pid)
        client.ask(WARM_UP)
        _control("--zero", pid)
        client.ask(COUNTED)
        _control("--dump", pid)
        dumped = stage.folder / "callgrind.out.1"
        spent = _control_output("callgrind_annotate", "--threshold=90", str(dumped)) if lines else ""
        return total(dumped.read_text()) // COUNTED, "\n".join(spent.splitlines()[:lines])


def total(profile: str) -> int:
    """Instructions in all, as a profile of callgrind's says them in its last lines."""
    found = [line for line in profile.splitlines() if line.startswith(("totals:", "summary:"))]
    return int(found[-1].partition(":")[2])


def _control(option: str, pid: int) -> None:
    _control_output("callgrind_control", option, str(pid))


def _control_output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--proxy", default=MCPROXY)
    parser.add_argument("--lines", type=int, default=0, help="lines of the profile to print")
    arguments = parser.parse_args()
    end_on_sigterm()
    for workload in _chosen(arguments.names):
        try:
            count, spent = instructions(workload, arguments.proxy, split(available_cores()), arguments.lines)
        except NotStarted as error:
            sys.exit(str(error))
        print(f"{count:>10,}  {workload.name}", flush=True)
        if spent:
            print(spent)


def _chosen(names: Sequence[str]) -> list[Workload]:
    every = (*WORKLOADS, *SPREAD)
    return [each for each in every if not names or any(name in each.name for name in names)]


if __name__ == "__main__":
    main()
