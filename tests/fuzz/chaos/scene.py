"""The processes of a chaos run: a gateway with its configuration, and the upstreams, which can be killed and frozen."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import anyio
from anyio.abc import Process

from mcproxy.access.keys import key_digest, make
from mcproxy.protocol.eras import Era
from tests.ports import free_port
from tests.processes import descendants
from tests.system.running import (
    PYTHON,
    ROOT,
    Gateway,
    Json,
    configuration,
    serving,
    until_listening,
    write,
)
from tests.timeouts import GUARD

PRINCIPALS: Final = ("ann", "bob", "cid")
CHILDREN: Final = {
    "pipe-old": Era.HANDSHAKE,
    "pipe-new": Era.STATELESS,
    "own": Era.HANDSHAKE,
    "calm-pipe": Era.HANDSHAKE,
}
"""Upstreams over stdio."""
WEB: Final = {"web-old": Era.HANDSHAKE, "web-new": Era.STATELESS, "calm-web": Era.STATELESS}
"""Upstreams over HTTP."""
CALM: Final = ("calm-pipe", "calm-web")
"""Upstreams to which nothing happens."""
WATCHED: Final = ("pipe-old", "pipe-new", "calm-pipe", "web-old", "web-new", "calm-web")
"""Upstreams whose changes are awaited: those with one connection for all callers."""
UPSTREAMS: Final = (*CHILDREN, *WEB)


@dataclass
class WebUpstream:
    """An upstream over HTTP that keeps its port from one start to the next."""

    era: Era
    journal: Path
    port: int = field(default_factory=free_port)
    process: Process | None = None

    async def start(self) -> None:
        command = [PYTHON, "-m", "tests.fuzz.chaos.web", self.era.value, str(self.journal), str(self.port)]
        self.process = await anyio.open_process(command, stdin=None, stdout=None, stderr=None, cwd=ROOT)
        with anyio.fail_after(GUARD):
            await until_listening(self.port)  # before, a signal that cuts connections would end it

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)
            await self.process.wait()
            self.process = None


class Scene:
    """`running` is the gateway. Knows who may be disturbed, and does it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = {name: make() for name in (*PRINCIPALS, "harness")}
        self.web = {name: WebUpstream(era, self.journal(name)) for name, era in WEB.items()}
        self.running: Gateway
        self._disabled: set[str] = set()
        self._revoked: set[str] = set()
        self._generation = 0
        self._reloading = anyio.Lock()

    def journal(self, upstream: str) -> Path:
        return self.folder / f"{upstream}.journal"

    @property
    def journals(self) -> list[Path]:
        return [self.journal(name) for name in UPSTREAMS]

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """The gateway and all upstreams run."""
        try:
            for upstream in self.web.values():
                await upstream.start()
            file = write(self.folder, self._settings())
            async with serving(self.folder, file) as self.running:
                with anyio.fail_after(GUARD):
                    for name in UPSTREAMS:
                        if name != "own":
                            await self.running.log.says(partial(_is_connected, name))
                yield
        finally:
            with anyio.CancelScope(shield=True):
                for upstream in self.web.values():
                    await upstream.end()

    async def metric(self, name: str) -> float:
        headers = {"Authorization": f"Bearer {self.keys['harness']}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.get(f"{self.running.url}/metrics") as response,
        ):
            text = await response.text()
        [line] = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        return float(line.split()[1])

    def processes(self, upstream: str) -> list[int]:
        """Those of an upstream that run, latest last."""
        if upstream in self.web:
            process = self.web[upstream].process
            return [] if process is None else [process.pid]
        below = set(descendants(self.running.process.pid))
        journal = self.journal(upstream)
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [
            pid
            for kind, _, text in (line.partition(" ") for line in lines)
            if kind == "pid" and (pid := int(text)) in below
        ]

    def signal(self, pids: Sequence[int], number: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def disable(self, upstream: str, disabled: bool) -> None:
        (self._disabled.add if disabled else self._disabled.discard)(upstream)
        await self.reload()

    async def revoke(self, principal: str, revoked: bool) -> None:
        (self._revoked.add if revoked else self._revoked.discard)(principal)
        await self.reload()

    async def reload(self) -> None:
        """Returns once the new configuration is in force."""
        async with self._reloading:
            self._generation += 1
            write(self.folder, self._settings())
            since = len(self.running.log.entries)
            self.running.process.send_signal(signal.SIGHUP)
            with anyio.fail_after(GUARD):
                await self.running.log.says(lambda entry: "configuration reloaded" in entry.get("event", ""), since)

    def _settings(self) -> Json:
        child = {"command": PYTHON, "cwd": str(ROOT)}
        patience = {"connect": 15, "idle": 20, "total": 30, "list": 20, "probe": 4, "shutdown": 1}
        upstreams: dict[str, Json] = {}
        for name, era in CHILDREN.items():
            arguments = ["-m", "tests.fuzz.chaos.server", era.value, str(self.journal(name))]
            upstreams[name] = {**child, "args": arguments, "timeouts": patience}
        upstreams["own"]["connection"] = "principal"
        for name, web in self.web.items():
            upstreams[name] = {"url": f"http://127.0.0.1:{web.port}/mcp", "timeouts": patience}
        for name in self._disabled:
            upstreams[name]["enabled"] = False
        whole = configuration(
            upstreams,
            watch=False,
            keep_alive=5 + self._generation % 7,
            connection_idle=600,
            ask_timeout=25,
            bridge={"park_ttl": 20},
            limits={"session_idle": 20},
        )
        keys = {
            name: [{"sha256": key_digest(key).hex(), "roles": ["operator"] if name == "harness" else []}]
            for name, key in self.keys.items()
            if name not in self._revoked
        }
        return {**whole, "access": {"authentication": {"keys": keys}}}


def _is_connected(name: str, entry: Mapping[str, object]) -> bool:
    return entry.get("event") == "upstream connected" and entry.get("upstream") == name
