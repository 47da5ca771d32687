"""Counts the Python opcodes that one request costs the gateway: `python -m benchmarks.opcodes [--lines N] [NAME ...]`.

The same to the digit each time, on any machine, in seconds: the first measure of a change of the gateway's own code.
Opcodes know nothing of what the interpreter, libraries in C and the kernel do for each of them; of the first two
`benchmarks.instructions` does. NAME is a part of a workload's.

The gateway runs in this process, with one connection; the upstream in another. A request counts with all that follows
from it until the loop has nothing left to do, and of several requests the cheapest. What goes by a clock counts for
nothing: the audit log's writer, the measure of the loop's lag.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import linecache
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, Final

import anyio
import anyio.to_thread

from benchmarks import asking
from benchmarks.asking import Ask
from benchmarks.crowd import WATCHED
from benchmarks.instructions import Client
from benchmarks.proxies import MCPROXY, PROXIES, Scene, gateway_file, upstream_name
from benchmarks.rounds import available_cores, plan, scene, upstream
from benchmarks.running import Cores, end_on_sigterm
from benchmarks.workloads import SPREAD, WORKLOADS, Workload, call
from mcproxy.app import running
from mcproxy.configuration.loading import load_configuration
from mcproxy.protocol.eras import Era
from mcproxy.protocol.methods import RESOURCE_UPDATED
from mcproxy.serving import run_http
from mcproxy.telemetry import logs

WARM_UP: Final = 30
"""Requests before those that are counted, beside one of each session and two to each upstream."""
COUNTED: Final = 25
QUIET: Final = 20
"""Turns of the loop without an opcode after which a request is over."""
PATIENCE: Final = 60.0
"""Seconds for one request."""
PROBE: Final = 0.1
"""Seconds between announcements, until the first is heard."""

BY_THE_CLOCK: Final = frozenset(
    {
        "AuditLog._run",
        "measure_loop_lag",
        # Of anyio: what the audit log's writer waits for.
        "WorkerThread._report_result",
        "CancelScope._timeout",
        "CancelScope._deliver_cancellation",
    }
)
"""Functions that are not counted, nor what they call: how often they run in a request's time, the machine decides."""

UPDATE: Final = Workload("update of a watched resource, handshake", call())
MEASURED: Final = (
    *(
        each
        for each in WORKLOADS
        if any(name in each.name for name in ("100 B c=1,", "100 B c=64, ", "4 KiB", "tools-list", "progress"))
        and each.name not in {"tools-call 100 B c=64, handshake", "tools-call 100 B c=64, stateless"}
    ),
    *SPREAD,
    UPDATE,
)

Spent = Counter[tuple[CodeType, int]]
"""Opcodes by function and line."""


class OpcodeTrace:
    """Counts opcodes of the thread that calls `begin` until it calls `end`, but those of this file."""

    def __init__(self) -> None:
        self.opcodes = 0
        self.spent: Spent = Counter()
        self.entries: Counter[CodeType] = Counter()
        """How often each function began or went on."""
        self._before = sys.gettrace()

    def begin(self) -> None:
        self.opcodes, self.spent, self.entries = 0, Counter(), Counter()
        self._before = sys.gettrace()
        sys.settrace(self._enter)

    def end(self) -> None:
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, _event: str, _: object) -> Callable[[FrameType, str, object], Any] | None:
        if frame.f_code.co_filename == __file__ or goes_by_the_clock(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.entries[frame.f_code] += 1
        return self._step

    def _step(self, frame: FrameType, event: str, _: object) -> Callable[[FrameType, str, object], Any]:
        if event == "opcode":
            self.opcodes += 1
            self.spent[frame.f_code, frame.f_lineno or 0] += 1
        return self._step


def goes_by_the_clock(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_qualname in BY_THE_CLOCK:
            return True
        frame = frame.f_back
    return False


@dataclass(frozen=True, slots=True)
class Cost:
    opcodes: int
    spent: Spent
    entries: Counter[CodeType]


class Meter:
    """Counts what `ask` costs a loop of uvloop's that runs in another thread: asyncio's own takes opcodes to turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._trace = OpcodeTrace()

    def cost(self, ask: Callable[[], object]) -> Cost:
        """Blocks, as `ask` does."""
        self._run(self._begin)
        ask()
        self._run(partial(self._wait, seen=-1, quiet=0))
        return Cost(self._trace.opcodes, self._trace.spent, self._trace.entries)

    def _run(self, step: Callable[[threading.Event], None]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(step, done)
        assert done.wait(PATIENCE), "the gateway's loop stands still"

    def _begin(self, done: threading.Event) -> None:
        done.set()
        self._trace.begin()

    def _wait(self, done: threading.Event, seen: int, quiet: int) -> None:
        count = self._trace.opcodes
        if quiet == QUIET:
            self._trace.end()
            done.set()
        else:
            self._loop.call_soon(self._wait, done, count, quiet + 1 if count == seen else 0)


def measured(workload: Workload, upstream_port: int, folder: Path, cores: Cores) -> Cost:
    """The cheapest of several requests, after others that warmed up. Raises TimeoutError."""
    stage = scene(workload, folder, upstream_port, cores)
    stage.folder.mkdir()
    return anyio.run(_measured, workload, stage, backend_options={"use_uvloop": True})


async def _measured(workload: Workload, stage: Scene) -> Cost:
    listening = anyio.Event()
    settings = load_configuration(gateway_file(stage)).settings
    async with running(settings) as app, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run_http, app, started=lambda *_: listening.set()))
        await listening.wait()
        meter = Meter(asyncio.get_running_loop())
        cost = await anyio.to_thread.run_sync(_cheapest, workload, stage, meter)
        tasks.cancel_scope.cancel()
    return cost


def _cheapest(workload: Workload, stage: Scene, meter: Meter) -> Cost:
    with (updates if workload is UPDATE else requests)(workload, stage) as ask:
        for _ in range(WARM_UP + max(workload.sessions, 2 * workload.upstreams)):
            ask()
        return min((meter.cost(ask) for _ in range(COUNTED)), key=attrgetter("opcodes"))


@contextmanager
def requests(workload: Workload, stage: Scene) -> Iterator[Callable[[], object]]:
    """Asks the workload's next request over one connection, and waits for its answer."""
    with ExitStack() as stack:
        client = Client(plan(workload, PROXIES[MCPROXY], stage.port), 1, stack)
        yield lambda: client.ask(1)


@contextmanager
def updates(_workload: Workload, stage: Scene) -> Iterator[Callable[[], object]]:
    """Has the upstream announce a change, and waits until a session that watches hears of it."""
    subscribe = Ask("resources/subscribe", {"uri": f"{upstream_name(0)}+{WATCHED}"}, '"result"', 0)
    session = asking.answered(stage.port, subscribe, Era.HANDSHAKE)
    fields = {"Host": "localhost", **asking.handshake_headers(session), "Accept": "text/event-stream"}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with socket.create_connection(("127.0.0.1", stage.port), PROBE) as stream:
        stream.sendall(f"GET /mcp HTTP/1.1\r\n{head}\r\n".encode())
        # The gateway may not listen to the upstream yet.
        while not _announced(stage.upstream, stream):
            pass
        stream.settimeout(PATIENCE)
        yield partial(_announced, stage.upstream, stream)


def _announced(upstream_port: int, stream: socket.socket) -> bool:
    """Whether an update that is announced now is heard within the stream's timeout."""
    connection = http.client.HTTPConnection("127.0.0.1", upstream_port, timeout=PATIENCE)
    try:
        connection.request("POST", "/announce", WATCHED)
        connection.getresponse().read()
    finally:
        connection.close()
    heard = b""
    try:
        while RESOURCE_UPDATED.encode() not in heard:
            heard += stream.recv(65536)
    except TimeoutError:
        return False
    return True


def functions(cost: Cost, most: int) -> Iterator[str]:
    """The functions that cost most: opcodes, entries, name."""
    by_code: Counter[CodeType] = Counter()
    for (code, _), count in cost.spent.items():
        by_code[code] += count
    for code, count in _largest(by_code, most):
        yield f"{count:>8,}  {cost.entries[code]:>4} times  {_place(code.co_filename)}  {code.co_qualname}"


def lines(cost: Cost, most: int) -> Iterator[str]:
    """The lines that cost most: opcodes, place, text."""
    by_line: Counter[tuple[str, int]] = Counter()
    for (code, line), count in cost.spent.items():
        by_line[code.co_filename, line] += count
    for (file, line), count in _largest(by_line, most):
        yield f"{count:>8,}  {_place(file)}:{line}  {linecache.getline(file, line).strip()}"


def _largest(counts: Mapping[Any, int], most: int) -> Iterable[tuple[Any, int]]:
    return sorted(counts.items(), key=lambda each: (-each[1], str(each[0])))[:most]


def _place(file: str) -> str:
    """A file as one knows it: below the repository, or below the folder of libraries."""
    return file.rpartition("site-packages/")[2].removeprefix(os.getcwd() + os.sep)


def chosen(names: Sequence[str]) -> list[Workload]:
    return [each for each in MEASURED if not names or any(name in each.name for name in names)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.opcodes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--lines", type=int, default=0, help="functions and lines to print, those that cost most")
    arguments = parser.parse_args()
    end_on_sigterm()
    logs.configure("json", "critical", ())
    cores = Cores(frozenset(available_cores()), frozenset(available_cores()))
    with TemporaryDirectory() as folder, ExitStack() as stack:
        os.environ["XDG_STATE_HOME"] = folder
        ports: dict[int, int] = {}
        for number, workload in enumerate(chosen(arguments.names)):
            if workload.tools not in ports:
                ports[workload.tools] = stack.enter_context(upstream(workload.tools, Path(folder), cores))
            cost = measured(workload, ports[workload.tools], Path(folder, str(number)), cores)
            print(f"{cost.opcodes:>8,}  {workload.name}", flush=True)
            for line in (*functions(cost, arguments.lines), *lines(cost, arguments.lines)):
                print(f"    {line}")


if __name__ == "__main__":
    main()
