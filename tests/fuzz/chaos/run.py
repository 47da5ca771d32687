"""A chaos run: disturbances in the order that the seed gives, calls all the while, and a calm minute by minute.

In a calm no call begins; all upstreams must come back, every watcher must hear of a change, and files, tasks, processes
and memory are compared with those of the second calm.
"""

from __future__ import annotations

import json
import random
import re
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import anyio
from anyio.abc import TaskGroup

from mcproxy.protocol.eras import Era
from tests.fuzz.chaos.client import STUCK, Client, Gate, Refused
from tests.fuzz.chaos.decisions import Action, Decision, decisions
from tests.fuzz.chaos.ledger import Invariant, Ledger
from tests.fuzz.chaos.scene import CALM, CHILDREN, PRINCIPALS, UPSTREAMS, WATCHED, WEB, Scene
from tests.fuzz.http import memory, open_files
from tests.processes import descendants

BETWEEN_CALMS: Final = 60.0
"""Seconds of disturbances."""
RECOVERY: Final = 90.0
"""Seconds for all upstreams to be back, and for each watcher to hear of a change."""
SETTLING: Final = 20.0
"""Seconds after a disturbance in which an error is no surprise: the longest backoff, and a connection."""
SPARE: Final = 10
"""Open files, tasks and processes that a calm may have more of than the second."""
GROWTH: Final = 1.25
"""Median memory of the last quarter of calms, in terms of that of the second."""
REVOKED: Final = 5.0
"""Seconds that a key stays revoked at least."""
OUTLIVES: Final = 30.0
"""Seconds in which the streams of a revoked key must have ended."""

_BROKEN: Final = re.compile(r"Traceback|crashed|never retrieved|unhandled|not callable|internal error", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Calm:
    """Measured while no call runs."""

    second: float
    files: int
    tasks: int
    processes: int
    memory: int
    """Resident MiB."""


@dataclass
class Chaos:
    seed: int
    scene: Scene
    ledger: Ledger
    on_calm: Callable[[Chaos], None]
    gate: Gate = field(default_factory=Gate)
    clients: list[Client] = field(default_factory=list)
    calms: list[Calm] = field(default_factory=list)
    actions: dict[Action, int] = field(default_factory=lambda: dict.fromkeys(Action, 0))
    harness: Client = field(init=False)
    """Makes the calls of calms."""
    _undoing: int = 0
    _undone: anyio.Event = field(default_factory=anyio.Event)

    async def run(self, seconds: float, between_calms: float, clients: int, at_least: int) -> None:
        began = time.monotonic()
        sequence = decisions(
            self.seed,
            [name for name in CHILDREN if name not in CALM],
            [name for name in WEB if name not in CALM],
            PRINCIPALS,
        )
        self.harness = self._client("harness", Era.STATELESS, 0)
        async with self.harness.connected(), anyio.create_task_group() as tasks:
            for client in self._clients(clients):
                self.clients.append(client)
                tasks.start_soon(client.run)
            await self._calm(began)
            while time.monotonic() - began < seconds or self.ledger.counts["results"] < at_least:
                await self._disturbed(sequence, time.monotonic() + between_calms, tasks)
                await self._calm(began)
            tasks.cancel_scope.cancel()
        self._judge()

    def _clients(self, number: int) -> Iterator[Client]:
        """`number` of each era for each principal."""
        for principal in PRINCIPALS:
            for era in Era:
                for index in range(number):
                    yield self._client(principal, era, index)

    def _client(self, principal: str, era: Era, index: int) -> Client:
        name = f"{principal}.{era.value}{index}"
        return Client(
            name=name,
            principal=principal,
            key=self.scene.keys[principal],
            era=era,
            url=f"{self.scene.running.url}/mcp",
            upstreams=UPSTREAMS,
            watched=WATCHED,
            chance=random.Random(f"{self.seed} {name}"),
            ledger=self.ledger,
            gate=self.gate,
        )

    async def _disturbed(self, sequence: Iterator[Decision], until: float, tasks: TaskGroup) -> None:
        while time.monotonic() < until:
            decision = next(sequence)
            await anyio.sleep(decision.after)
            if decision.target and self.ledger.is_disturbed(decision.target, time.monotonic() + SETTLING):
                continue  # something lasts there already
            self.actions[decision.action] += 1
            if decision.action is Action.RELOAD:
                await self.scene.reload()
            else:
                self._undoing += 1
                tasks.start_soon(self._carry_out, decision)

    async def _carry_out(self, decision: Decision) -> None:
        target = decision.target
        self.ledger.disturb(target)
        try:
            async with self._disturbance(decision):
                await anyio.sleep(decision.lasts)
        finally:
            self.ledger.settle(target, seconds=SETTLING)
            self._undoing -= 1
            self._undone.set()
            self._undone = anyio.Event()

    @asynccontextmanager
    async def _disturbance(self, decision: Decision) -> AsyncIterator[None]:
        """Left, it is undone."""
        target, scene = decision.target, self.scene
        match decision.action:
            case Action.KILL | Action.TERMINATE:
                number = signal.SIGKILL if decision.action is Action.KILL else signal.SIGTERM
                if target in scene.web:
                    await scene.web[target].end(number)
                    yield
                    await scene.web[target].start()
                else:
                    scene.signal(scene.processes(target)[-1:], number)
                    yield
            case Action.FREEZE:
                frozen = scene.processes(target)
                scene.signal(frozen, signal.SIGSTOP)
                yield
                scene.signal(frozen, signal.SIGCONT)
            case Action.CUT:
                scene.signal(scene.processes(target), signal.SIGUSR1)
                yield
            case Action.DISABLE:
                await scene.disable(target, True)
                yield
                await scene.disable(target, False)
            case Action.REVOKE:
                await scene.revoke(target, True)
                self.ledger.revoked[target] = since = time.monotonic()
                yield
                await anyio.sleep(REVOKED)
                of_target = [client for client in self.clients if client.principal == target]
                if not await _holds(
                    lambda: not any(one.outlived(since, time.monotonic()) for one in of_target), OUTLIVES
                ):
                    self.ledger.found(Invariant.REVOKED, f"a stream of {target} outlives its key")
                del self.ledger.revoked[target]
                await scene.revoke(target, False)

    async def _calm(self, began: float) -> None:
        self.gate.close()
        while self._undoing:
            await self._undone.wait()
        await _holds(lambda: not self.ledger.running, STUCK + 5)
        for name in UPSTREAMS:
            await self._recovered(name)
        if not await _holds(lambda: all(client.listening for client in self.clients), RECOVERY):
            deaf = [client.name for client in self.clients if not client.listening]
            self.ledger.found(Invariant.RECOVERED, f"no stream for {deaf}")
        for name in WATCHED:
            await self._told(name)
        self.ledger.read_journals(self.scene.journals)
        await self._measure(began)
        self.ledger.counts["calms"] += 1
        self.on_calm(self)
        self.gate.open()

    async def _recovered(self, upstream: str) -> None:
        """Calls until the upstream answers."""
        answer: object = None
        with anyio.move_on_after(RECOVERY):
            while True:
                try:
                    answer = await self.harness.call_once(upstream, "echo")
                except (Refused, aiohttp.ClientError) as error:
                    answer = error
                if isinstance(answer, str):
                    return
                await anyio.sleep(0.2)
        self.ledger.found(Invariant.RECOVERED, f"{upstream} is not back: {answer}")

    async def _told(self, upstream: str) -> None:
        """Changes the upstream's page and its list, and waits until every client knows."""
        before = {client.name: client.updates[upstream] for client in self.clients}
        await self.harness.call_once(upstream, "touch")
        grown = await self.harness.call_once(upstream, "grow")
        async with anyio.create_task_group() as tasks:
            for watcher in self.clients:
                tasks.start_soon(self._hears, watcher, upstream, before[watcher.name] + 1)
        if not isinstance(grown, str):
            self.ledger.found(Invariant.RECOVERED, f"{upstream} does not grow: {grown}")
            return
        name = f"{upstream}__{grown.rpartition(' ')[2]}"
        for watcher in self.clients:
            if not await _lists(watcher, name):
                self.ledger.found(Invariant.TOLD, f"{name} is not in the list of {watcher.name}")

    async def _hears(self, watcher: Client, upstream: str, updates: int) -> None:
        with anyio.move_on_after(RECOVERY) as scope:
            await watcher.hears(upstream, updates)
        if scope.cancelled_caught:
            self.ledger.found(Invariant.TOLD, f"{watcher.name} heard of no change of the page of {upstream}")

    async def _measure(self, began: float) -> None:
        running = self.scene.running
        # Before the second calm, links of single principals are not made.
        first = self.calms[1] if len(self.calms) > 1 else None
        with anyio.move_on_after(RECOVERY):
            while True:
                calm = Calm(
                    time.monotonic() - began,
                    open_files(running),
                    int(await self.scene.metric("mcproxy_tasks")),
                    len(descendants(running.process.pid)),
                    memory(running),
                )
                if first is None or _exceeds(calm, first) is None:
                    break
                await anyio.sleep(1)
        self.calms.append(calm)
        if first is not None and (what := _exceeds(calm, first)) is not None:
            self.ledger.found(Invariant.RELEASED, f"{what}: {calm}, early on {first}")

    def _judge(self) -> None:
        """What can be said at the end alone."""
        quarter = len(self.calms) // 4
        if quarter:
            late = statistics.median(calm.memory for calm in self.calms[-quarter:])
            early = statistics.median(calm.memory for calm in self.calms[quarter : 2 * quarter])
            if late > early * GROWTH:
                self.ledger.found(Invariant.MEMORY, f"{early} MiB, and {late} in the end")
        for entry in self.scene.running.log.entries:
            if _BROKEN.search(json.dumps(entry)):
                self.ledger.found(Invariant.LOG, json.dumps(entry)[:2000])


async def _holds(condition: Callable[[], bool], within: float) -> bool:
    """Whether it holds within so many seconds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        await anyio.sleep(0.1)
    return True


async def _lists(client: Client, tool: str) -> bool:
    """Whether a tool comes to be in the list of a client."""
    deadline = time.monotonic() + RECOVERY
    while tool not in await client.tools():
        if time.monotonic() > deadline:
            return False
        await anyio.sleep(0.2)
    return True


def _exceeds(calm: Calm, first: Calm) -> str | None:
    for what in ("files", "tasks", "processes"):
        if getattr(calm, what) > getattr(first, what) + SPARE:
            return what
    return None


def report(chaos: Chaos, minutes: float) -> str:
    """The run as Markdown."""
    ledger, calms = chaos.ledger, chaos.calms
    lines = [f"seed {chaos.seed}, {minutes:.1f} minutes, {len(chaos.clients)} clients, {len(UPSTREAMS)} upstreams", ""]
    lines += ["| count | |", "| --- | ---: |"]
    lines += [f"| {name} | {count} |" for name, count in sorted(ledger.counts.items())]
    lines += [f"| {action.value} | {count} |" for action, count in chaos.actions.items()]
    lines += ["", "| invariant | broken |", "| --- | ---: |"]
    lines += [f"| {invariant.value} | {ledger.broken[invariant]} |" for invariant in Invariant]
    lines += ["", "| minute | open files | tasks | processes | memory, MiB |", "| ---: | ---: | ---: | ---: | ---: |"]
    for index in sorted({0, len(calms) // 4, len(calms) // 2, 3 * len(calms) // 4, len(calms) - 1}):
        calm = calms[index]
        lines.append(f"| {calm.second / 60:.0f} | {calm.files} | {calm.tasks} | {calm.processes} | {calm.memory} |")
    return "\n".join([*lines, "", *(f"FOUND {finding}" for finding in ledger.findings)])


async def main(
    minutes: float,
    seed: int,
    *,
    between_calms: float = BETWEEN_CALMS,
    clients: int = 2,
    at_least: int = 0,
    on_calm: Callable[[Chaos], None] = lambda chaos: None,
) -> Chaos:
    """Runs so long, and until there are `at_least` results; `clients` is their number for each principal and era."""
    with tempfile.TemporaryDirectory() as name:
        scene = Scene(Path(name))
        async with scene.entered():
            chaos = Chaos(seed, scene, Ledger(time.monotonic), on_calm)
            await chaos.run(minutes * 60, between_calms, clients, at_least)
    return chaos
