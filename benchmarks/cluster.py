"""Replicas for long under faults: `python -m benchmarks.cluster [--minutes 30] [--seed 14]` prints Markdown.

Three replicas behind nginx, round robin, with a real Redis. Handshake sessions and stateless clients call a tool with
a side effect, each time with a key of its own; sessions that subscribed read again when they are told of an update.
Faults come at random, one after the other. Counts calls that were executed twice, answers that were wrong, and updates
that never led a subscriber to the newest state; ends with 1 where there was any. Then the throughput of one to three.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
import anyio

from benchmarks import load
from benchmarks.asking import answered, post
from benchmarks.machine import Machine, this_machine
from benchmarks.running import ROOT
from benchmarks.workloads import call
from mcproxy.protocol.eras import LATEST, Era
from tests.cluster.replicas import configure
from tests.cluster.upstream import URI, SharedUpstream, shared_upstream

REPLICAS: Final = 3
SESSIONS: Final = 12
"""Handshake sessions that call."""
STATELESS: Final = 4
SUBSCRIBERS: Final = 6
PAUSE: Final = 0.01
"""Seconds between two calls of one client."""
CALL_TIMEOUT: Final = 30.0
CHANGE_EVERY: Final = 3.0
"""Seconds between two changes of the resource."""
UPDATE_WITHIN: Final = 60.0
"""Seconds after which a subscriber that has not read the newest state has lost an update."""
QUIET: Final = (8.0, 20.0)
"""Seconds between two faults."""
START: Final = 60.0
MEMBER_TTL: Final = 2.0
LOAD_SECONDS: Final = 15
CONNECTIONS: Final = 48

PORTS: Final = range(20_000, 32_000)
"""Below those that Linux hands out (`ip_local_port_range`): still free when a program that died comes again."""

Json = dict[str, Any]


class ProgramEnded(Exception):
    """A program ended before it was ready; the text has its last words."""


def own_port() -> int:
    """A port that nothing gets unless it asks for it by its number."""
    while True:
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", random.choice(PORTS)))
            return int(tried.getsockname()[1])


class Program:
    """A program that is killed, frozen and started again, always on the same port."""

    def __init__(self, command: list[str], port: int, log: Path, path: str = "") -> None:
        self.port = port
        self._command = command
        self._log = log
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises OSError where another program has its port: that would answer in its place."""
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", self.port))
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output, cwd=ROOT)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> None:
        assert self._process is not None
        while self._process.poll() is None:  # noqa: ASYNC110 a process has no event
            await anyio.sleep(0.02)

    async def ready(self) -> None:
        """Returns when it answers, or listens where it has no path to ask. Raises ProgramEnded."""
        assert self._process is not None
        with anyio.fail_after(START):
            while not await self._answers():
                if self._process.poll() is not None:
                    raise ProgramEnded(f"{self._command}\n{self._log.read_text(errors='replace')[-2000:]}")
                await anyio.sleep(0.05)

    async def _answers(self) -> bool:
        try:
            if not self._path:
                await (await anyio.connect_tcp("127.0.0.1", self.port)).aclose()
                return True
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"http://127.0.0.1:{self.port}{self._path}") as response,
            ):
                return response.status == 200
        except (OSError, aiohttp.ClientError):
            return False

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()


@dataclass
class Cluster:
    redis: Program
    replicas: list[Program]
    nginx: Program

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.nginx.port}/mcp"


@asynccontextmanager
async def cluster(folder: Path, upstream: str, size: int) -> AsyncIterator[Cluster]:
    ports, redis_port, front = [own_port() for _ in range(size)], own_port(), own_port()
    redis_command = ["redis-server", "--port", f"{redis_port}", "--bind", "127.0.0.1", "--save", "", "--appendonly"]
    redis_command += ["no", "--dir", str(folder), "--loglevel", "warning"]
    redis = Program(redis_command, redis_port, folder / "redis.log")
    replicas = [replica(folder, port, redis_port, upstream) for port in ports]
    configure(folder, ports, f"127.0.0.1:{front}")
    nginx = Program(["/usr/sbin/nginx", "-p", str(folder), "-c", f"{folder}/nginx.conf"], front, folder / "nginx.log")
    running = Cluster(redis, replicas, nginx)
    try:
        for program in (redis, *replicas, nginx):
            program.start()
        for program in (redis, *replicas, nginx):
            await program.ready()
        await anyio.sleep(MEMBER_TTL)
        yield running
    finally:
        for program in (nginx, *replicas, redis):
            program.end()


def replica(folder: Path, port: int, redis: int, upstream: str) -> Program:
    settings = {
        "mcpServers": {"up": {"url": upstream, "required": True}},
        "proxy": {"port": port, "secret": "the same on every replica", "log_format": "json", "shutdown_grace": 5},
        "cluster": {
            "redis": f"redis://127.0.0.1:{redis}/0",
            "listen": f"127.0.0.1:{own_port()}",
            "member_ttl": MEMBER_TTL,
        },
    }
    file = folder / f"replica-{port}.json"
    file.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "mcproxy", "serve", "--config", str(file)]
    return Program(command, port, folder / f"replica-{port}.log", "/readyz")


@dataclass
class Counts:
    sent: int = 0
    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Calls without a result, by what was said; whether they were executed is unknown to their clients."""
    wrong: list[str] = field(default_factory=list)
    reopened: int = 0
    """Sessions that were unknown (404), whose clients initialized anew."""
    changes: int = 0
    updates_lost: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    slowest_update: float = 0

    def twice(self, upstream: SharedUpstream) -> int:
        return sum(times > 1 for times in upstream.executed.values())


class Stop:
    """Whether the clients should end."""

    def __init__(self) -> None:
        self.told = False


class HandshakeClient:
    """A client of a session, which opens another where its own is unknown."""

    def __init__(self, http: aiohttp.ClientSession, url: str, counts: Counts, name: str) -> None:
        self._http = http
        self._url = url
        self._counts = counts
        self.name = name
        self.headers: dict[str, str] = {}
        self._id = 0

    async def open(self) -> None:
        """Returns once a session is open."""
        self.headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
        info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": self.name, "version": "1"}}
        while True:
            try:
                async with self._http.post(
                    self._url, json=self._message("initialize", info), headers=self.headers
                ) as r:
                    if r.status == 200:
                        self.headers["Mcp-Session-Id"] = r.headers["Mcp-Session-Id"]
                        break
            except (aiohttp.ClientError, TimeoutError):
                pass
            await anyio.sleep(0.1)

    def _message(self, method: str, params: Json) -> Json:
        self._id += 1
        return {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}

    async def ask(self, method: str, params: Json) -> Json | str:
        """The result, or why there is none. A session that is unknown is opened anew, and that is said."""
        message = self._message(method, params)
        try:
            async with self._http.post(self._url, json=message, headers=self.headers) as response:
                if response.status == 404:
                    self._counts.reopened += 1
                    return "404"
                if response.status != 200:
                    return f"HTTP {response.status}"
                answer = await answer_in(response, message["id"])
        except (aiohttp.ClientError, TimeoutError) as error:
            return type(error).__name__
        if answer is None:
            return "the stream ended"
        if answer.get("id") != message["id"]:
            self._counts.wrong.append(f"an answer to {answer.get('id')} for {message['id']}")
            return "another's answer"
        return answer["result"] if "result" in answer else str(answer["error"]["message"])[:80]

    async def call_until(self, stop: Stop) -> None:
        await self.open()
        number = 0
        while not stop.told:
            number += 1
            result = await counted_call(self._counts, f"{self.name}-{number}", self.ask)
            if result == "404":
                await self.open()
            await anyio.sleep(PAUSE)


async def answer_in(response: aiohttp.ClientResponse, id: int) -> Json | None:
    """The answer in a body that is JSON or an event stream."""
    if response.content_type == "application/json":
        found: Json = await response.json()
        return found
    async for line in response.content:
        if line.startswith(b"data: {"):
            message: Json = json.loads(line.removeprefix(b"data: "))
            if message.get("id") == id and "method" not in message:
                return message
    return None


async def counted_call(counts: Counts, key: str, ask: Any) -> object:
    counts.sent += 1
    result = await ask("tools/call", {"name": "up__count", "arguments": {"key": key}})
    if isinstance(result, str):
        counts.failed[result] += 1
        return result
    counts.answered += 1
    text = result["content"][0]["text"]
    if text != key:
        counts.wrong.append(f"{text!r} for {key!r}")
    return None


class StatelessClient:
    def __init__(self, http: aiohttp.ClientSession, url: str, counts: Counts, name: str) -> None:
        self._http = http
        self._url = url
        self._counts = counts
        self._name = name

    async def ask(self, method: str, params: Json) -> Json | str:
        meta = {
            "io.modelcontextprotocol/protocolVersion": LATEST,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": self._name, "version": "1"},
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": LATEST,
            "Mcp-Method": method,
            "Mcp-Name": params["name"],
        }
        try:
            async with self._http.post(self._url, json=message, headers=headers) as response:
                answer = await answer_in(response, 1) if response.status == 200 else None
                if answer is None:
                    return f"HTTP {response.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return type(error).__name__
        return answer["result"] if "result" in answer else str(answer["error"]["message"])[:80]

    async def call_until(self, stop: Stop) -> None:
        number = 0
        while not stop.told:
            number += 1
            await counted_call(self._counts, f"{self._name}-{number}", self.ask)
            await anyio.sleep(PAUSE)


class Subscriber:
    """Reads the resource when it is told of an update, and when it opened its session anew: as a client does."""

    def __init__(self, client: HandshakeClient, http: aiohttp.ClientSession, url: str) -> None:
        self._client = client
        self._http = http
        self._url = url
        self.seen = -1
        """The newest state that it read."""
        self._epoch = 0

    async def run(self) -> None:
        while True:
            await self._client.open()
            if not await self._subscribed():
                continue
            await self._read()
            with suppress(SessionLost):
                while True:
                    await self._listen()

    async def _subscribed(self) -> bool:
        while True:
            result = await self._client.ask("resources/subscribe", {"uri": f"up+{URI}"})
            if not isinstance(result, str):
                return True
            if result == "404":
                return False
            await anyio.sleep(0.1)

    async def _read(self) -> None:
        """Raises SessionLost."""
        while True:
            result = await self._client.ask("resources/read", {"uri": f"up+{URI}"})
            if not isinstance(result, str):
                self.seen = max(self.seen, int(result["contents"][0]["text"]))
                return
            if result == "404":
                raise SessionLost
            await anyio.sleep(0.1)

    async def _listen(self) -> None:
        """One GET stream until it ends; a client opens another. Raises SessionLost."""
        headers = {**self._client.headers, "Accept": "text/event-stream"}
        try:
            async with self._http.get(self._url, headers=headers) as stream:
                if stream.status == 404:
                    self._client._counts.reopened += 1
                    raise SessionLost
                if stream.status != 200:
                    await anyio.sleep(0.1)
                    return
                async for line in stream.content:
                    if line.startswith(b"data: {") and b"resources/updated" in line:
                        await self._read()
        except (aiohttp.ClientError, TimeoutError):
            await anyio.sleep(0.1)


class SessionLost(Exception):
    """The session is unknown."""


async def change_until(stop: Stop, upstream: SharedUpstream, subscribers: list[Subscriber], counts: Counts) -> None:
    """Changes the resource, and sees that every subscriber gets to know the state, or a newer one."""
    async with anyio.create_task_group() as tasks:
        while not stop.told:
            counts.changes += 1
            upstream.change(f"{counts.changes}")
            for subscriber in subscribers:
                tasks.start_soon(_seen, subscriber, counts.changes, counts)
            await anyio.sleep(CHANGE_EVERY)


async def _seen(subscriber: Subscriber, number: int, counts: Counts) -> None:
    began = anyio.current_time()
    with anyio.move_on_after(UPDATE_WITHIN) as waiting:
        while subscriber.seen < number:  # noqa: ASYNC110 it has none either
            await anyio.sleep(0.02)
    if waiting.cancelled_caught:
        counts.updates_lost += 1
    else:
        counts.slowest_update = max(counts.slowest_update, anyio.current_time() - began)


class Faults:
    """What happens to the cluster, one after the other."""

    def __init__(self, running: Cluster, chance: random.Random, counts: Counts) -> None:
        self._cluster = running
        self._chance = chance
        self._counts = counts

    async def rage(self, until: float) -> None:
        faults = [
            self.kill,
            self.freeze,
            self.rolling_restart,
            self.redis_killed,
            self.redis_frozen,
            self.redis_emptied,
        ]
        while anyio.current_time() < until:
            await anyio.sleep(self._chance.uniform(*QUIET))
            fault = self._chance.choice(faults)
            self._counts.faults[fault.__name__] += 1
            print(f"{time.strftime('%H:%M:%S')} {fault.__name__}", file=sys.stderr, flush=True)
            await fault()

    async def kill(self) -> None:
        victim = self._chance.choice(self._cluster.replicas)
        victim.signal(signal.SIGKILL)
        await victim.ended()
        await anyio.sleep(self._chance.uniform(0, 5))
        victim.start()
        await victim.ready()

    async def freeze(self) -> None:
        victim = self._chance.choice(self._cluster.replicas)
        victim.signal(signal.SIGSTOP)
        await anyio.sleep(self._chance.uniform(2, 10))
        victim.signal(signal.SIGCONT)

    async def rolling_restart(self) -> None:
        for one in self._cluster.replicas:
            one.signal(signal.SIGTERM)
            await one.ended()
            one.start()
            await one.ready()
            await anyio.sleep(MEMBER_TTL)

    async def redis_killed(self) -> None:
        self._cluster.redis.signal(signal.SIGKILL)
        await self._cluster.redis.ended()
        await anyio.sleep(self._chance.uniform(1, 10))
        self._cluster.redis.start()
        await self._cluster.redis.ready()

    async def redis_emptied(self) -> None:
        """It is there again at once, and holds nothing."""
        self._cluster.redis.signal(signal.SIGKILL)
        await self._cluster.redis.ended()
        self._cluster.redis.start()
        await self._cluster.redis.ready()

    async def redis_frozen(self) -> None:
        self._cluster.redis.signal(signal.SIGSTOP)
        await anyio.sleep(self._chance.uniform(1, 10))
        self._cluster.redis.signal(signal.SIGCONT)


async def soak(minutes: float, seed: int, logs: Path) -> tuple[Counts, int]:
    """What was counted, and the calls that were executed twice."""
    counts, stop = Counts(), Stop()
    timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT)
    unlimited = aiohttp.ClientTimeout(total=None, sock_connect=CALL_TIMEOUT)
    async with (
        shared_upstream() as upstream,
        cluster(logs, upstream.url, REPLICAS) as running,
        aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http,
        aiohttp.ClientSession(timeout=unlimited, connector=aiohttp.TCPConnector(limit=0)) as streaming,
    ):
        subscribers = [
            Subscriber(HandshakeClient(http, running.url, counts, f"watcher{n}"), streaming, running.url)
            for n in range(SUBSCRIBERS)
        ]
        async with anyio.create_task_group() as watching:
            for subscriber in subscribers:
                watching.start_soon(subscriber.run)
            while any(subscriber.seen < 0 for subscriber in subscribers):  # noqa: ASYNC110 it has no event
                await anyio.sleep(0.05)
            async with anyio.create_task_group() as tasks:
                for number in range(SESSIONS):
                    client = HandshakeClient(http, running.url, counts, f"session{number}")
                    tasks.start_soon(client.call_until, stop)
                for number in range(STATELESS):
                    tasks.start_soon(StatelessClient(http, running.url, counts, f"stateless{number}").call_until, stop)
                tasks.start_soon(change_until, stop, upstream, subscribers, counts)
                await Faults(running, random.Random(seed), counts).rage(anyio.current_time() + 60 * minutes)
                await anyio.sleep(5)
                stop.told = True
            watching.cancel_scope.cancel()
        return counts, counts.twice(upstream)


def table(counts: Counts, twice: int) -> Iterator[str]:
    yield "| counted | |\n| :-- | --: |"
    yield f"| calls sent | {counts.sent} |"
    yield f"| answered with a result | {counts.answered} |"
    yield f"| **executed twice** | **{twice}** |"
    yield f"| **answered wrongly** | **{len(counts.wrong)}** |"
    yield f"| changes of the resource, each for {SUBSCRIBERS} subscribers | {counts.changes} |"
    yield f"| **updates lost** | **{counts.updates_lost}** |"
    yield f"| slowest update, s | {counts.slowest_update:.1f} |"
    yield f"| sessions unknown, and initialized anew by their clients | {counts.reopened} |"
    for reason, times in counts.failed.most_common():
        yield f"| calls without a result: {reason} | {times} |"
    for fault, times in counts.faults.most_common():
        yield f"| fault: {fault.replace('_', ' ')} | {times} |"


@contextmanager
def bench_upstream(folder: Path) -> Iterator[str]:
    port = own_port()
    program = Program([sys.executable, "-m", "benchmarks.upstream", f"{port}"], port, folder / "upstream.log")
    program.start()
    try:
        anyio.run(program.ready)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        program.end()


def throughput(folder: Path) -> Iterator[str]:
    """Calls of 100 bytes a second with one, two and three replicas behind nginx, in both eras."""
    yield "| replicas | era | calls/s | p50, ms | p99, ms | wrong |\n| --: | :-- | --: | --: | --: | --: |"
    cores = frozenset(os.sched_getaffinity(0))
    for size in range(1, REPLICAS + 1):
        with ExitStack() as stack:
            place = Path(stack.enter_context(TemporaryDirectory(dir=folder)))
            upstream = stack.enter_context(bench_upstream(place))

            async def measure(size: int, place: Path, upstream: str) -> list[str]:
                lines = list[str]()
                async with cluster(place, upstream, size) as running:
                    for era in (Era.HANDSHAKE, Era.STATELESS):
                        lines.append(await anyio.to_thread.run_sync(loaded, running, era, place, cores, size))
                return lines

            yield from anyio.run(measure, size, place, upstream)


def loaded(running: Cluster, era: Era, folder: Path, cores: frozenset[int], size: int) -> str:
    port, ask = running.nginx.port, call()("up__", "up+")
    sessions = [answered(port, ask, era) for _ in range(12)]
    requests = [post(ask, era, session).wire(port) for session in sessions]
    plan = load.Plan(port, requests, ask.mark, ask.at_least, CONNECTIONS)
    load.run(plan, 3, folder, cores)
    found = load.run(plan, LOAD_SECONDS, folder, cores)
    if found.failures:
        print(f"with {size} replicas, {era.value}, the first wrong answer: {found.sample}", file=sys.stderr)
    return (
        f"| {size} | {era.value} | {found.answers / found.seconds:.0f} | {found.p50 * 1e3:.1f} "
        f"| {found.p99 * 1e3:.1f} | {found.failures} |"
    )


def described(machine: Machine) -> str:
    gib = machine.memory / 2**30
    return (
        f"mcproxy at {machine.commit}, {machine.day}; {machine.processor}, {machine.cores} cores for all of it, "
        f"{gib:.0f} GiB, {machine.system}; load average before: {machine.load_before:.1f}"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    arguments.add_argument("--minutes", type=float, default=30)
    arguments.add_argument("--seed", type=int, default=14)
    arguments.add_argument("--logs", type=Path, help="folder that keeps the logs of all programs")
    arguments.add_argument("--no-throughput", action="store_true")
    chosen = arguments.parse_args()
    with TemporaryDirectory() as temporary:
        folder = chosen.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{described(this_machine())}; seed {chosen.seed}, {chosen.minutes:g} minutes\n", flush=True)
        counts, twice = anyio.run(soak, chosen.minutes, chosen.seed, folder)
        print("\n".join(table(counts, twice)), flush=True)
        for wrong in counts.wrong[:10]:
            print(f"\nwrong: {wrong}")
        if not chosen.no_throughput:
            print("\n" + "\n".join(throughput(folder)))
    sys.exit(1 if twice or counts.wrong or counts.updates_lost else 0)


if __name__ == "__main__":
    main()
