"""Random reloads of a gateway under load: `python -m benchmarks.reloads [COUNT] [SEED]` (requirement R49).

Real children over stdio, callers that never rest, and one difference after the other. A call may fail only where its
own upstream was taken out, renamed or connected anew while it ran; who is not touched stays the process that it was;
and in the end nothing is left of all that was.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import anyio
import msgspec
from msgspec import Raw

from mcproxy.app import App, running
from mcproxy.call.calls import Call, Complete
from mcproxy.call.clients import Change, InputRequest
from mcproxy.call.errors import McpError
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.protocol.eras import LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, Params, raw
from mcproxy.protocol.methods import row_of
from mcproxy.settings import Settings, UpstreamSettings
from mcproxy.telemetry import logs
from mcproxy.telemetry.metrics import UNKNOWN
from tests.processes import descendants

SERVER: Final = Path(__file__).parents[1] / "tests" / "fakes" / "servers" / "pid.py"
STEADY: Final = "steady"
CHANGING: Final = ("a", "b", "c", "d")
CALLERS: Final = 3
"""Of each upstream."""
PACE: Final = 20
"""Calls that end between two reloads, at most."""
PATIENCE: Final = 30.0
"""Seconds for an upstream to answer."""
LOOKS: Final = 400
"""How often it is looked whether nothing is left."""
OUR_OWN: Final = {STEADY, UNKNOWN, ""}
"""Upstreams of which series may be left."""


class Broken(AssertionError):
    """What must not happen did."""


@dataclass(frozen=True)
class Plan:
    """What the configuration says of one upstream."""

    name: str
    present: bool = True
    enabled: bool = True
    prefix: str = ""
    process: int = 0
    """Another number is another process."""
    hides: bool = False
    list_poll: int = 0
    ttl: int = 0

    def spec(self) -> UpstreamSettings:
        return UpstreamSettings.model_validate(
            {
                "name": self.name,
                "prefix": self.prefix or self.name,
                "command": sys.executable,
                "args": ["-I", "-S", str(SERVER)],
                "env": {"PROCESS": str(self.process)},
                "enabled": self.enabled,
                "era": "legacy",
                "tools": {"exclude": ["hidden"] if self.hides else []},
                "list_poll": self.list_poll,
                "cache": {"ttl": {"*": self.ttl}},
                "timeouts": {"shutdown": 1},
            }
        )

    @property
    def on(self) -> bool:
        return self.present and self.enabled

    def mutated(self, chance: random.Random) -> Plan:
        match chance.randrange(8):
            case 0:
                return replace(self, present=not self.present)
            case 1:
                return replace(self, enabled=not self.enabled)
            case 2:
                return replace(self, prefix=chance.choice(["", f"{self.name}-2", f"{self.name}-3"]))
            case 3:
                return replace(self, process=self.process + 1)
            case 4:
                return replace(self, hides=not self.hides)
            case 5:
                return replace(self, list_poll=chance.choice([0, 60, 600]))
            case 6:
                return replace(self, ttl=self.ttl + 1)
            case _:
                return self


@dataclass
class Figures:
    reloads: int = 0
    calls: int = 0
    excused: int = 0
    """Calls that failed because their own upstream was taken out, renamed or connected anew while they ran."""
    starts: int = 0
    """Processes that answered."""
    blocked: list[float] = field(default_factory=list)
    """Seconds for which each reload held the event loop up."""

    def __str__(self) -> str:
        worst, median = max(self.blocked) * 1000, statistics.median(self.blocked) * 1000
        return (
            f"{self.reloads} reloads, {self.calls} calls, {self.excused} of them cut off with their own upstream, "
            f"{self.starts} processes; the loop was held up for {median:.2f} ms (median), {worst:.2f} ms (worst)"
        )


@dataclass(frozen=True)
class Footprint:
    """What a leak would show in."""

    tasks: int
    descriptors: int
    processes: int

    @classmethod
    def now(cls) -> Footprint:
        return cls(len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")), len(descendants(os.getpid())))


class Nobody:
    """The `Client` of all these calls."""

    def notify(self, method: str, params: Params) -> None:
        return

    async def ask(self, request: InputRequest) -> Raw:
        raise McpError(INVALID_REQUEST, "nobody is asked here")


class Ear:
    """A `Listener` that counts what it was told."""

    def __init__(self, endpoint: str) -> None:
        self.caller = Caller(ANONYMOUS, LATEST_HANDSHAKE, endpoint=endpoint)
        self.told: list[Change] = []

    def set_log_level(self, level: str) -> None:
        return

    def signal(self, change: Change) -> None:
        self.told.append(change)

    async def ask(self, request: InputRequest) -> Raw:
        raise McpError(INVALID_REQUEST, "nobody is asked here")


class Storm:
    """Callers and reloads of one gateway."""

    def __init__(self, app: App, chance: random.Random) -> None:
        self.app = app
        self.figures = Figures()
        self._chance = chance
        self._plans = {name: Plan(name) for name in (STEADY, *CHANGING)}
        self._disturbed: dict[str, int] = dict.fromkeys(self._plans, 0)
        """The last reload that cut an upstream's callers off."""
        self._pids: dict[tuple[str, int], int] = {}
        """By the upstream and the last reload that started its process anew."""
        self._started: dict[str, int] = dict.fromkeys(self._plans, 0)
        self._ended = anyio.Event()

    async def call(self, name: str) -> None:
        """One call, judged."""
        plan, disturbed, started = self._plans[name], self._disturbed[name], self._started[name]
        if not plan.on:
            await anyio.lowlevel.checkpoint()
            return
        tool = f"{plan.prefix or name}__{self._chance.choice(['who', 'slow'])}"
        outcome = await self.app.handler(
            Call(row_of("tools/call"), {"name": raw(tool)}, Caller(ANONYMOUS, LATEST_HANDSHAKE), Nobody())
        )
        self.figures.calls += 1
        if not isinstance(outcome, Complete):
            if self._disturbed[name] == disturbed:
                raise Broken(f"{tool} failed, and nobody had touched its upstream: {outcome}")
            self.figures.excused += 1
        elif self._started[name] == started:
            self._check_process(name, started, outcome)
        self._ended.set()
        self._ended = anyio.Event()

    def _check_process(self, name: str, started: int, outcome: Complete) -> None:
        pid = msgspec.json.decode(raw(outcome.result))["structuredContent"]["pid"]
        if self._pids.setdefault((name, started), pid) != pid:
            raise Broken(f"{name} is another process, and nobody had asked for one")

    async def ended(self, calls: int) -> None:
        target = self.figures.calls + calls
        while self.figures.calls < target:
            await self._ended.wait()

    async def answered(self, name: str) -> None:
        """Returns when the process that an upstream has by now answered."""
        with anyio.fail_after(PATIENCE):
            while self._plans[name].on and (name, self._started[name]) not in self._pids:
                await self._ended.wait()

    def reload(self, plans: dict[str, Plan]) -> None:
        self.figures.reloads += 1
        for name, plan in plans.items():
            before = self._plans[name]
            renewed = (before.on, before.process) != (plan.on, plan.process)
            if renewed:
                self._started[name] = self.figures.reloads
            if renewed or before.prefix != plan.prefix:
                self._disturbed[name] = self.figures.reloads
        self._plans = plans
        settings = settings_of(list(plans.values()))
        began = time.perf_counter()
        self.app.reconfigure(settings)
        self.figures.blocked.append(time.perf_counter() - began)

    def next_plans(self) -> dict[str, Plan]:
        plans = dict(self._plans)
        for name in self._chance.sample(CHANGING, self._chance.randint(1, 3)):
            plans[name] = plans[name].mutated(self._chance)
        if self._chance.random() < 0.2:
            order = list(plans)
            self._chance.shuffle(order)
            plans = {name: plans[name] for name in order}
        return plans

    async def rage(self, reloads: int) -> None:
        async with anyio.create_task_group() as tasks:
            for name in self._plans:
                for _ in range(CALLERS):
                    tasks.start_soon(self._keep_calling, name)
            for _ in range(reloads):
                await self.ended(self._chance.randint(0, PACE))
                if self._chance.random() < 0.5:
                    await self.answered(self._chance.choice(CHANGING))
                self.reload(self.next_plans())
            await self.ended(PACE)
            tasks.cancel_scope.cancel()
        self.figures.starts = len(self._pids)

    async def _keep_calling(self, name: str) -> None:
        while True:
            await self.call(name)


async def storm(reloads: int, seed: int) -> Figures:
    """Raises Broken."""
    async with running(settings_of([Plan(STEADY)])) as app:
        it = Storm(app, random.Random(seed))
        await app.settled()
        await it.call(STEADY)
        before, ear = Footprint.now(), Ear(STEADY)
        app.gateway.join(ear)
        it.reload({name: Plan(name) for name in (STEADY, *CHANGING)})
        await it.rage(reloads)
        it.reload({STEADY: Plan(STEADY), **{name: Plan(name, present=False) for name in CHANGING}})
        await _calmed(before, app)
        await it.call(STEADY)
        if ear.told:
            raise Broken(f"who sees {STEADY!r} alone was told of {ear.told}")
    return it.figures


async def _calmed(before: Footprint, app: App) -> None:
    """Returns once nothing is left of what was added since; raises Broken where something stays."""
    for _ in range(LOOKS):
        if Footprint.now() == before and _series(app) <= OUR_OWN:
            return
        await anyio.sleep(0.05)
    raise Broken(f"left: {Footprint.now()} where it was {before}; series of {sorted(_series(app))}")


def _series(app: App) -> set[str]:
    families = app.metrics.registry.collect()
    return {
        sample.labels["upstream"] for family in families for sample in family.samples if "upstream" in sample.labels
    }


def settings_of(plans: Sequence[Plan]) -> Settings:
    proxy = {"secret": "sixteen characters", "list_wait": 0, "log_level": "error"}
    upstreams = [plan.spec() for plan in plans if plan.present]
    return Settings.model_validate({"proxy": proxy, "upstreams": upstreams})


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.reloads", description=__doc__)
    arguments.add_argument("count", type=int, nargs="?", default=1000)
    arguments.add_argument("seed", type=int, nargs="?", default=49)
    chosen = arguments.parse_args()
    logs.configure("console", "error", [])
    print(anyio.run(storm, chosen.count, chosen.seed))


if __name__ == "__main__":
    main()
