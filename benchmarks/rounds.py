"""Puts the proxies of one workload in front of the same upstream and lets them take turns under load."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import asking, load
from benchmarks.gathering import gathered
from benchmarks.proxies import DIRECT, MCPROXY, PROXIES, Proxy, Scene
from benchmarks.ratios import Turn
from benchmarks.running import Cores, NotStarted, alone, running
from benchmarks.usage import Memory, memory, processor_seconds
from benchmarks.variants import VARIANTS
from benchmarks.workloads import Workload, ask_of
from mcproxy.protocol.eras import Era
from tests.ports import free_port

WARM_UP: Final = 1.0
"""Seconds of load before the first round."""


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    seconds: float
    """Of load, each turn."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A proxy that runs, or the upstream itself."""

    name: str
    pid: int | None
    plan: load.Plan


@dataclass(frozen=True, slots=True)
class Compared:
    turns: dict[str, list[Turn]]
    """By the name of the proxy, one for each round."""
    absent: dict[str, str]
    """Proxies that could not take part, and why."""


def compare(workload: Workload, effort: Effort, cores: Cores) -> Compared:
    """Raises load.BrokenLoad and gathering.Scattered."""
    if not VARIANTS[workload.variant]:
        return Compared({}, {MCPROXY: f"the variant {workload.variant!r} is not there yet"})
    turns: dict[str, list[Turn]] = {}
    with alone(), TemporaryDirectory() as folder, ExitStack() as stack:
        place = Path(folder)
        contenders, absent = _started(workload, place, cores, stack)
        for contender in contenders:
            load.run(contender.plan, WARM_UP, place, cores.others)
        for number in range(effort.rounds):
            for contender in _in_turn(contenders, number):
                turns.setdefault(contender.name, []).append(_turn(contender, effort.seconds, place, cores))
    return Compared(turns, absent)


def _in_turn(contenders: Sequence[Contender], number: int) -> Sequence[Contender]:
    """ABC, CBA, ABC, ...: nobody is always first after a pause."""
    return contenders if number % 2 == 0 else contenders[::-1]


def _turn(contender: Contender, seconds: float, folder: Path, cores: Cores) -> Turn:
    if contender.pid is None:
        return Turn(load.run(contender.plan, seconds, folder, cores.others), 0.0, Memory(0, 0))
    before = processor_seconds(contender.pid)
    loaded = load.run(contender.plan, seconds, folder, cores.others)
    return Turn(loaded, processor_seconds(contender.pid) - before, memory(contender.pid))


def _started(
    workload: Workload, folder: Path, cores: Cores, stack: ExitStack
) -> tuple[list[Contender], dict[str, str]]:
    port = stack.enter_context(upstream(workload.tools, folder, cores))
    contenders: list[Contender] = []
    absent: dict[str, str] = {}
    for name in workload.proxies:
        proxy = PROXIES.get(name)
        try:
            contenders.append(_contender(workload, proxy, port, folder, cores, stack))
        except (NotStarted, OSError) as error:
            absent[name] = str(error)
    return contenders, absent


@contextmanager
def upstream(tools: int, folder: Path, cores: Cores) -> Iterator[int]:
    """The port of the upstream."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.upstream", str(port), str(tools)]
    with running(command, cores.others, port, folder / "upstream.log"):
        yield port


@contextmanager
def proxy_running(proxy: Proxy, scene: Scene, cores: Cores) -> Iterator[int]:
    """The process id of a proxy that listens. Raises NotStarted."""
    missing = proxy.missing()
    if missing is not None:
        raise NotStarted(missing)
    scene.folder.mkdir()
    program = proxy.start(scene)
    with running(program.command, cores.proxy, scene.port, scene.folder / "log", program.environment) as pid:
        yield pid


def scene(workload: Workload, folder: Path, upstream: int, cores: Cores) -> Scene:
    return Scene(
        folder=folder,
        port=free_port(),
        upstream=upstream,
        load_core=min(cores.others),
        era=workload.era,
        upstreams=workload.upstreams,
        tools=workload.tools,
        stdio=workload.stdio,
        variant=workload.variant,
    )


def _contender(
    workload: Workload, proxy: Proxy | None, upstream: int, folder: Path, cores: Cores, stack: ExitStack
) -> Contender:
    if proxy is None:
        return Contender(DIRECT, None, plan(workload, None, upstream))
    stage = scene(workload, folder / proxy.name, upstream, cores)
    pid = stack.enter_context(proxy_running(proxy, stage, cores))
    if workload.crowd and proxy.name == MCPROXY:
        asking.answered(stage.port, ask_of(workload, proxy, 0), workload.era)
        stack.enter_context(gathered(stage.port, cores, workload.crowd))
    return Contender(proxy.name, pid, plan(workload, proxy, stage.port))


def plan(workload: Workload, proxy: Proxy | None, port: int) -> load.Plan:
    """What to send to a port, once all that is asked there is answered. Raises TimeoutError."""
    asks = [ask_of(workload, proxy, number) for number in range(workload.upstreams if proxy else 1)]
    sessions = [asking.answered(port, ask, workload.era) for ask in asks][:1]
    if workload.era is Era.HANDSHAKE:
        sessions += [asking.open_session(port) for _ in range(workload.sessions - 1)]
    several = max(len(asks), len(sessions))
    posts = [
        asking.post(asks[number % len(asks)], workload.era, sessions[number % len(sessions)], workload.fields)
        for number in range(several)
    ]
    return load.Plan(port, [post.wire(port) for post in posts], asks[0].mark, asks[0].at_least, workload.connections)


def available_cores() -> set[int]:
    return os.sched_getaffinity(0)
