"""A gateway for long under all at once: `python -m tests.bench.soak [--minutes 30]`.

Both eras, calls, reads, lists and progress, HTTP and stdio upstreams; meanwhile an upstream restarts, the
configuration is reloaded, sessions are abandoned, a crowd comes and goes, and clients ask for much and read nothing.
Prints a table of throughput, p99, memory and open files over time; ends with 1 where answers were wrong or one of
the two grew.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from mcproxy.protocol.eras import Era
from tests.bench import asking, load
from tests.bench.answers import KEPT
from tests.bench.asking import NUMBER
from tests.bench.gathering import gathered
from tests.bench.proxies import Scene, configuration, gateway
from tests.bench.rounds import available_cores, upstream
from tests.bench.running import Cores, end_on_sigterm, free_port, running, split
from tests.bench.usage import descriptors, memory
from tests.bench.workloads import Asking, call, listing, read

SLICE: Final = 10
"""Seconds of load between two looks at the gateway."""
CONNECTIONS: Final = 32
ABANDONED: Final = 50
"""Sessions that are opened and left, each slice."""
CROWD: Final = 100
STUCK: Final = 5
"""Clients that do not read what they asked for, at once."""
MUCH: Final = 8 * 2**20
GROWTH: Final = 1.25
"""More than this, between the first and the last quarter, is a leak."""


@dataclass(frozen=True, slots=True)
class Look:
    """What there was to see at the end of one slice."""

    second: int
    rate: float
    p99: float
    """Seconds."""
    failures: int
    resident: int
    """Bytes."""
    files: int


def grown(values: Sequence[float]) -> float:
    """The last quarter in terms of the first that is warm: the second."""
    quarter = max(1, len(values) // 4)
    return median(values[-quarter:]) / median(values[quarter : 2 * quarter] or values)


def verdict(looks: Sequence[Look]) -> list[str]:
    """What was not well."""
    wrong = sum(look.failures for look in looks)
    memory_growth = grown([look.resident for look in looks])
    file_growth = grown([look.files for look in looks])
    complaints = {
        f"{wrong} answers were wrong or missing": wrong > 0,
        f"memory grew to {memory_growth:.2f} of what it was": memory_growth > GROWTH,
        f"open files grew to {file_growth:.2f} of what they were": file_growth > GROWTH,
    }
    return [complaint for complaint, true in complaints.items() if true]


def table(looks: Sequence[Look]) -> Iterator[str]:
    yield "| second | calls/s | p99, ms | wrong | RSS, MiB | open files |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: |"
    yield from map(line, looks)


def line(look: Look) -> str:
    return (
        f"| {look.second} | {look.rate:.0f} | {look.p99 * 1e3:.1f} | {look.failures} "
        f"| {look.resident / 2**20:.1f} | {look.files} |"
    )


class Disturbances:
    """What happens beside the load, a little each slice."""

    def __init__(self, port: int, pid: int, file: Path, cores: Cores, shaky: Shaky) -> None:
        self._port = port
        self._pid = pid
        self._file = file
        self._cores = cores
        self._shaky = shaky
        self._stuck: deque[socket.socket] = deque()

    def happen(self, number: int) -> None:
        for _ in range(ABANDONED):
            asking.open_session(self._port)
        with gathered(self._port, self._cores, CROWD):
            self._get_stuck()
        match number % 3:
            case 0:
                self._shaky.restart()
            case 1:
                self._reload(number)
            case _:
                asking.answered(self._port, call()("shaky__", ""), Era.STATELESS)

    def end(self) -> None:
        while self._stuck:
            self._stuck.popleft().close()

    def _get_stuck(self) -> None:
        """One more client asks for much and reads nothing; the one that did so longest ago hangs up."""
        if len(self._stuck) == STUCK:
            self._stuck.popleft().close()
        client = socket.create_connection(("127.0.0.1", self._port))
        wire = asking.post(call(MUCH)("u0__", ""), Era.STATELESS, None).wire(self._port)
        client.sendall(wire.replace(NUMBER, "111111111").encode())
        self._stuck.append(client)

    def _reload(self, number: int) -> None:
        settings = json.loads(self._file.read_text())
        settings["mcpServers"]["new"] = {**settings["mcpServers"]["u0"], "enabled": number % 2 == 0}
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(settings))
        fresh.replace(self._file)
        os.kill(self._pid, signal.SIGHUP)


class Shaky:
    """An upstream that is killed and started again, on the same port."""

    def __init__(self, folder: Path, cores: Cores) -> None:
        self.port: Final = free_port()
        self._folder = folder
        self._cores = cores
        self._running = ExitStack()

    def restart(self) -> None:
        self.end()
        command = [sys.executable, "-m", "tests.bench.upstream", str(self.port)]
        self._running.enter_context(running(command, self._cores.others, self.port, self._folder / "shaky.log"))

    def end(self) -> None:
        self._running.close()


def settings(scene: Scene, shaky: int) -> dict[str, Any]:
    """Sessions that nobody uses end within the run."""
    plain = configuration(scene)
    http = plain["mcpServers"]["u0"]
    child = {"command": scene.child[0], "args": scene.child[1:], "era": "modern", "max_in_flight": CONNECTIONS * 2}
    more = {"child": {**child, "cwd": http.get("cwd", os.getcwd())}, "shaky": {**http, "url": _url(shaky)}}
    limits = {**plain["proxy"]["limits"], "session_idle": 3 * SLICE}
    return {"mcpServers": {**plain["mcpServers"], **more}, "proxy": {**plain["proxy"], "limits": limits}}


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"


def plan(port: int) -> load.Plan:
    """All kinds of requests in both eras, in turn."""
    everywhere: Mapping[str, Sequence[Asking]] = {
        "u0": (call(), call(64 * 1024), call(steps=3), read(f"bench://fresh/{NUMBER}"), read(f"{KEPT}1"), listing(1)),
        "child": (call(), call(steps=3)),
    }
    asks = [ask(f"{name}__", f"{name}+") for name, kinds in everywhere.items() for ask in kinds]
    session = asking.open_session(port)
    posts = [asking.post(ask, era, session if era is Era.HANDSHAKE else None) for ask in asks for era in Era]
    for ask in asks:
        asking.answered(port, ask, Era.STATELESS)
    return load.Plan(port, [post.wire(port) for post in posts], asks[0].mark, asks[0].at_least, CONNECTIONS)


def soak(seconds: int, cores: Cores) -> Iterator[Look]:
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        shaky = Shaky(folder, cores)
        stack.callback(shaky.end)
        shaky.restart()
        behind = stack.enter_context(upstream(1, folder, cores))
        scene = Scene(folder, free_port(), behind, min(cores.others))
        file = folder / "mcproxy.json"
        file.write_text(json.dumps(settings(scene, shaky.port)))
        program = gateway(file)
        pid = stack.enter_context(
            running(program.command, cores.proxy, scene.port, folder / "log", program.environment)
        )
        disturbances = Disturbances(scene.port, pid, file, cores, shaky)
        stack.callback(disturbances.end)
        yield from _slices(seconds, plan(scene.port), disturbances, pid, folder, cores)


def _slices(
    seconds: int, plan: load.Plan, disturbances: Disturbances, pid: int, folder: Path, cores: Cores
) -> Iterator[Look]:
    with ThreadPoolExecutor(1) as pool:
        for number in range(seconds // SLICE):
            loading = pool.submit(load.run, plan, SLICE, folder, cores.others)
            disturbances.happen(number)
            done = loading.result()
            rate = done.answers / done.seconds
            yield Look((number + 1) * SLICE, rate, done.p99, done.failures, memory(pid).resident, descriptors(pid))
            if done.failures:
                print(f"such as: {done.sample}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    end_on_sigterm()
    seconds = int(parser.parse_args().minutes * 60)
    looks: list[Look] = []
    print("\n".join(table([])))
    for look in soak(max(SLICE, seconds), split(available_cores())):
        looks.append(look)
        print(line(look), flush=True)
    complaints = verdict(looks)
    print("\n".join(complaints) or "all well")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
