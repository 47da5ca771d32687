"""Programs run as their users run them: a gateway with a configuration file, and whatever else a test starts.

What is started here is ended here, and must have ended well: a gateway by SIGTERM, with exit status 0.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from mcproxy.protocol.methods import Kind
from tests.fakes.clients.raw import over_http
from tests.forking import GATEWAYS
from tests.ports import free_port
from tests.processes import descendants, kill
from tests.timeouts import GUARD

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
SERVERS = ROOT / ".cache" / "servers" / "bin"
SDK1 = ROOT / ".cache" / "sdk1" / "bin" / "python"
NODE = ROOT / "tests" / "system" / "node"
GO = ROOT / ".cache" / "go"
RUST = ROOT / ".cache" / "rust"
JAVA = ROOT / ".cache" / "java"
JVM = [
    "java",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-cp",
    f"{JAVA / 'classes'}:{JAVA / 'lib'}/*",
    "matrix.Main",
]
"""The Java SDK's program, by options that have it start soon."""
ODD_SERVER = [PYTHON, str(Path(__file__).with_name("odd_server.py"))]

CLIENTS: dict[str, list[str]] = {
    "python1": [str(SDK1), "-m", "tests.fakes.clients.python1"],
    "python2": [PYTHON, "-W", "ignore", "-m", "tests.fakes.clients.python2"],
    "typescript1": ["node", str(NODE / "typescript1.mjs")],
    "typescript2": ["node", str(NODE / "typescript2.mjs")],
    "go": [str(GO / "official"), "play"],
    "mcpgo": [str(GO / "mcpgo"), "play"],
    "rust": [str(RUST / "matrix"), "play"],
    "java": [*JVM, "play"],
}
"""The SDKs as programs that play scripts; see `tests.fakes.clients`."""

MAX_TRANSCRIPT = 2**28

Json = dict[str, Any]


def npm_server(name: str, *arguments: str) -> list[str]:
    """The command of one of the npm servers, without `npx` in between."""
    return [
        "node",
        str(NODE / "node_modules" / "@modelcontextprotocol" / f"server-{name}" / "dist/index.js"),
        *arguments,
    ]


def need_npm() -> None:
    """Skips a test that needs npm's packages where they are not set up; in CI that is a failure."""
    _need("npm", NODE / "node_modules" / "installed.stamp", "the npm packages are not set up")


def need_go() -> None:
    """Skips a test that needs the Go SDKs' programs where they are not built; in CI that is a failure."""
    _need("go", GO / "installed.stamp", "the Go programs are not built")


def need_rust() -> None:
    """Skips a test that needs the Rust SDK's program where it is not built; in CI that is a failure."""
    _need("cargo", RUST / "installed.stamp", "the Rust program is not built")


def need_java() -> None:
    """Skips a test that needs the Java SDK's program where it is not built; in CI that is a failure."""
    _need("mvn", JAVA / "installed.stamp", "the Java program is not built")


def _need(tool: str, stamp: Path, otherwise: str) -> None:
    missing = None if shutil.which(tool) else f"{tool} is not installed"
    if missing is None and not stamp.exists():
        missing = f"{otherwise}: run `make test`"
    if missing is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)


@dataclass
class Log:
    """What a program wrote to its stderr. A line that is a JSON object is read as one."""

    entries: list[Json] = field(default_factory=list)
    ended: bool = False
    _news: anyio.Event = field(default_factory=anyio.Event)

    async def keep(self, stderr: ByteReceiveStream) -> None:
        rest = b""
        async with stderr:
            async for chunk in stderr:
                *lines, rest = (rest + chunk).split(b"\n")
                self.entries += [_entry(line) for line in lines]
                self._tell()
        self.ended = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def says(self, wanted: Callable[[Json], bool], since: int = 0) -> Json:
        """The first entry that is wanted, from the one at `since` on, as soon as it is there."""
        seen = since
        while True:
            for entry in self.entries[seen:]:
                if wanted(entry):
                    return entry
            seen = len(self.entries)
            assert not self.ended, f"it ended without saying so:\n{self}"
            await self._news.wait()

    def __str__(self) -> str:
        return "\n".join(entry.get("text") or json.dumps(entry) for entry in self.entries)


def _entry(line: bytes) -> Json:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    return entry if isinstance(entry, dict) else {"text": line.decode(errors="replace")}


@dataclass
class Gateway:
    url: str
    process: Process
    log: Log
    folder: Path
    """Where its configuration is."""
    is_stopping: bool = False

    def stop(self) -> None:
        """Tells it to stop, once: of a second SIGTERM it dies."""
        if not self.is_stopping and self.process.returncode is None:
            self.process.terminate()
        self.is_stopping = True

    def server(self, name: str, transport: str = "mcp") -> str:
        """The URL of one upstream alone."""
        return f"{self.url}/servers/{name}/{transport}"

    async def knows(self, name: str, since: int = 0) -> None:
        """Returns once an upstream is connected and its lists are known, so that they change no more by themselves."""
        await self.log.says(
            lambda entry: entry.get("event") == "upstream connected" and entry.get("upstream") == name, since
        )
        async with over_http(self.server(name)) as client:
            await client.initialize()
            for kind in Kind:
                await client.request(kind.list_method)

    @asynccontextmanager
    async def serving(self, upstreams: Json) -> AsyncIterator[None]:
        """Puts upstreams behind a gateway that has none, and takes them away again: nothing is left of their lists."""
        await self.reload(configuration(upstreams, watch=False))
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self.reload(configuration({}, watch=False))

    async def reload(self, settings: Json) -> None:
        """Reloads with other settings; returns once every upstream is connected and its lists are known."""
        since = len(self.log.entries)
        write(self.folder, settings)
        self.process.send_signal(signal.SIGHUP)
        with anyio.fail_after(GUARD):
            await self.log.says(lambda entry: entry.get("event") == "configuration reloaded", since)
            for name in settings["mcpServers"]:
                await self.knows(name, since)


def configuration(upstreams: Json, **proxy: object) -> Json:
    """A configuration on any free port, whose log a test can read."""
    ours = {"port": 0, "log_format": "json", "list_wait": 60, "remember_lists": False}
    return {"mcpServers": upstreams, "proxy": {**ours, **proxy}}


def write(folder: Path, settings: Json) -> Path:
    file = folder / "mcproxy.json"
    file.write_text(json.dumps(settings))
    return file


def command(file: Path, *more: str) -> list[str]:
    return [PYTHON, "-m", *module_command(file, *more)]


def module_command(file: Path, *more: str) -> list[str]:
    return ["mcproxy", "serve", "--config", str(file), *more]


@asynccontextmanager
async def gateway(folder: Path, settings: Json, *, ends_well: bool = True) -> AsyncIterator[Gateway]:
    """A gateway over HTTP that knows every upstream. Where not `ends_well`, the test ends it itself."""
    file = write(folder, settings)
    async with serving(folder, file, *settings["mcpServers"], ends_well=ends_well) as running:
        yield running


@asynccontextmanager
async def serving(
    folder: Path, file: Path, *upstreams: str, more: Sequence[str] = (), ends_well: bool = True
) -> AsyncIterator[Gateway]:
    """As `gateway`, with a configuration file and more of a command line."""
    log = Log()
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    async with anyio.create_task_group() as tasks:
        process = await GATEWAYS.open_process(module_command(file, *more), environment)
        running = Gateway("", process, log, file.parent)
        try:
            assert process.stderr is not None
            tasks.start_soon(log.keep, process.stderr)
            with anyio.fail_after(3 * GUARD):
                running.url = await _address(log)
                for name in upstreams:
                    await running.knows(name)
            yield running
        finally:
            running.stop()
            status = await _ended(process)
            print(log, file=sys.stderr)
        assert not ends_well or status == 0, f"the gateway ended with {status}"


async def _address(log: Log) -> str:
    """The base URL, as the log or the banner tells it."""
    entry = await log.says(lambda entry: "://" in (entry.get("url") or entry.get("text", "")))
    found = re.search(r"https?://[\d.:]+", entry.get("url") or entry["text"])
    assert found is not None
    return found[0]


async def _ended(process: Process) -> int | None:
    """The exit status of a process that was told to stop, or None for one that had to be killed."""
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(GUARD):
            return await process.wait()
        process.kill()
        await process.wait()
    return None


@asynccontextmanager
async def web_server(*arguments: str) -> AsyncIterator[str]:
    """The URL of an MCP server that takes the port to listen on as its last argument."""
    port = free_port()
    process = await anyio.open_process([*arguments, str(port)], stdin=None, stdout=None, stderr=None, cwd=ROOT)
    try:
        with anyio.fail_after(GUARD):
            await until_listening(port)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        with anyio.CancelScope(shield=True):
            process.kill()
            await process.wait()


async def until_listening(port: int) -> None:
    while True:
        try:
            await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
        except OSError:
            await anyio.sleep(0.02)  # to ask without a pause would take the time that the server needs to start
        else:
            return


class Clients:
    """The SDKs' clients, each started when it is first needed, that play one script after another."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Process, BufferedByteReceiveStream]] = {}

    async def play(self, client: str, script: Json, *, within: float) -> str:
        """The transcript, as JSON. Where that fails or takes too long, the next script finds a new client."""
        if client not in self._running:
            process = await anyio.open_process(CLIENTS[client], stderr=None, cwd=ROOT)
            assert process.stdout is not None
            self._running[client] = process, BufferedByteReceiveStream(process.stdout)
        process, transcripts = self._running[client]
        assert process.stdin is not None
        try:
            with anyio.fail_after(within):
                await process.stdin.send(json.dumps(script).encode() + b"\n")
                return (await transcripts.receive_until(b"\n", MAX_TRANSCRIPT)).decode()
        except BaseException:
            await self._end(client)
            raise

    async def aclose(self) -> None:
        for client in list(self._running):
            await self._end(client)

    async def _end(self, client: str) -> None:
        process, _ = self._running.pop(client)
        with anyio.CancelScope(shield=True):
            kill([process.pid, *descendants(process.pid)])
            await process.aclose()


async def run(arguments: Sequence[str], *, within: float) -> bytes:
    """The stdout of a program that ends by itself, with status 0 and in time."""
    with anyio.fail_after(within):
        done = await anyio.run_process(arguments, stderr=subprocess.PIPE, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}:\n{done.stderr.decode()}"
    return done.stdout
