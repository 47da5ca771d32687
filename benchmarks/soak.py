"""A gateway for long under all at once: `python -m benchmarks.soak [--minutes 30] [--calls]`.

Both eras, calls, reads, lists and progress, HTTP and stdio upstreams, or 100 B calls alone; meanwhile an upstream
restarts, the configuration is reloaded, sessions are abandoned, a crowd comes and goes, and clients ask for much and
read nothing. Prints, in Markdown, throughput, times, memory, open files and tasks minute by minute; ends with 1 where
answers were wrong or one of the last three grew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import sys
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks import asking, load
from benchmarks.answers import KEPT
from benchmarks.asking import NUMBER, Ask
from benchmarks.gathering import gathered
from benchmarks.machine import this_machine
from benchmarks.proxies import Scene, configuration, gateway
from benchmarks.rounds import available_cores, upstream
from benchmarks.running import Cores, end_on_sigterm, running, split
from benchmarks.usage import descriptors, memory
from benchmarks.workloads import Asking, call, listing, read
from mcproxy.protocol.eras import Era
from tests.ports import free_port

SLICE: Final = 10
"""Seconds of load between two looks at the gateway."""
MINUTE: Final = 60 // SLICE
"""Looks of one line."""
CONNECTIONS: Final = 32
CALLERS: Final = 64
"""Connections where there are calls alone."""
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
    p50: float
    """Seconds."""
    p99: float
    """Seconds."""
    failures: int
    resident: int
    """Bytes."""
    files: int
    tasks: int


def grown(values: Sequence[float]) -> float:
    """The last quarter in terms of the first that is warm: the second."""
    quarter = max(1, len(values) // 4)
    return median(values[-quarter:]) / median(values[quarter : 2 * quarter] or values)


def verdict(looks: Sequence[Look]) -> list[str]:
    """What was not well."""
    wrong = sum(look.failures for look in looks)
    growth = {
        "memory": grown([look.resident for look in looks]),
        "open files": grown([look.files for look in looks]),
        "tasks": grown([look.tasks for look in looks]),
    }
    complaints = [f"{wrong} answers were wrong or missing"] if wrong else []
    return complaints + [f"{what}: {share:.2f} of what it was" for what, share in growth.items() if share > GROWTH]


def table(looks: Sequence[Look]) -> Iterator[str]:
    """A line for each minute."""
    yield "| minute | calls/s | p50, ms | p99, ms | wrong | RSS, MiB | open files | tasks |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for start in range(0, len(looks), MINUTE):
        yield line(start // MINUTE + 1, looks[start : start + MINUTE])


def line(minute: int, looks: Sequence[Look]) -> str:
    """The median of a minute's looks, but all that was wrong, and the longest p99."""
    return (
        f"| {minute} | {median(look.rate for look in looks):.0f} | {median(look.p50 for look in looks) * 1e3:.1f} "
        f"| {max(look.p99 for look in looks) * 1e3:.1f} | {sum(look.failures for look in looks)} "
        f"| {median(look.resident for look in looks) / 2**20:.1f} | {median(look.files for look in looks):.0f} "
        f"| {median(look.tasks for look in looks):.0f} |"
    )


def summary(looks: Sequence[Look]) -> str:
    """What of the table is asked about first."""
    shares = sorted(look.p99 / look.p50 for look in looks)
    return f"p99 in terms of p50, slice by slice: median {median(shares):.2f}, {shares[0]:.2f} to {shares[-1]:.2f}"


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
        command = [sys.executable, "-m", "benchmarks.upstream", str(self.port)]
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


def mixture(port: int) -> load.Plan:
    """All kinds of requests in both eras, in turn."""
    everywhere: Mapping[str, Sequence[Asking]] = {
        "u0": (call(), call(64 * 1024), call(steps=3), read(f"bench://fresh/{NUMBER}"), read(f"{KEPT}1"), listing(1)),
        "child": (call(), call(steps=3)),
    }
    asks = [ask(f"{name}__", f"{name}+") for name, kinds in everywhere.items() for ask in kinds]
    return planned(port, asks, CONNECTIONS)


def calls(port: int) -> load.Plan:
    return planned(port, [call()("u0__", "")], CALLERS)


def planned(port: int, asks: Sequence[Ask], connections: int) -> load.Plan:
    session = asking.open_session(port)
    posts = [asking.post(ask, era, session if era is Era.HANDSHAKE else None) for ask in asks for era in Era]
    for ask in asks:
        asking.answered(port, ask, Era.STATELESS)
    return load.Plan(port, [post.wire(port) for post in posts], asks[0].mark, asks[0].at_least, connections)


def soak(seconds: int, plan: Callable[[int], load.Plan], cores: Cores) -> Iterator[Look]:
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
            yield Look(
                second=(number + 1) * SLICE,
                rate=done.answers / done.seconds,
                p50=done.p50,
                p99=done.p99,
                failures=done.failures,
                resident=memory(pid).resident,
                files=descriptors(pid),
                tasks=tasks(plan.port),
            )
            if done.failures:
                print(f"such as: {done.sample}", file=sys.stderr)


def tasks(port: int) -> int:
    """How many tasks a gateway says that it has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=asking.PATIENCE) as response:
        found = re.search(rb"^mcproxy_tasks (\S+)", response.read(), re.MULTILINE)
    assert found is not None, "it does not say"
    return int(float(found[1]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--calls", action="store_true", help="100 B calls of both eras alone")
    arguments = parser.parse_args()
    end_on_sigterm()
    looks: list[Look] = []
    plan, connections = (calls, CALLERS) if arguments.calls else (mixture, CONNECTIONS)
    for look in soak(max(SLICE, int(arguments.minutes * 60)), plan, split(available_cores())):
        looks.append(look)
        print(look, file=sys.stderr, flush=True)
    machine = this_machine()
    what = "100 B calls" if arguments.calls else "all kinds of requests"
    print(f"{what} of both eras over {connections} connections; mcproxy at {machine.commit}, {machine.day}\n")
    print("\n".join(table(looks)))
    print(f"\n{summary(looks)}")
    complaints = verdict(looks)
    print("\n".join(complaints) or "all well")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
