"""The twin of `mcproxy.service.secret_rotation`; and a gateway whose secret is replaced while its clients call it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from aiohttp import ClientResponse, ClientSession
from mcp.client.client import Client

from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.protocol.eras import LATEST_HANDSHAKE
from mcproxy.sealing import Sealer, Unsealable
from mcproxy.service.secret_rotation import SecretRotation
from mcproxy.settings import Settings
from mcproxy.upstream.oauth.grants import GrantKey
from mcproxy.upstream.oauth.storage.store import FileStore, MemoryStore
from tests.ports import free_port
from tests.system.running import PYTHON, ROOT, Gateway, Json, configuration, gateway, write
from tests.timeouts import GUARD
from tests.upstream.oauth.test_grants import grant

pytestmark = pytest.mark.anyio

OLD, NEW = "the secret of last year", "and this is the new one"
PID = str(ROOT / "tests" / "fakes" / "servers" / "pid.py")


def settings(*secrets: str) -> Settings:
    return Settings.model_validate({"proxy": {"secret": secrets}})


async def test_a_reload_seals_with_the_new_secret_and_renews_the_file_of_grants(tmp_path: Path) -> None:
    path = tmp_path / "grants"
    sealer = Sealer(OLD.encode())
    store = FileStore(path, sealer)
    await store.save(grant())
    rotation = SecretRotation(settings(OLD), sealer, store)
    session = sealer.seal("session", b"x")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rotation.run)
        rotation.reconfigure(settings(NEW, OLD))
        assert sealer.open("session", session) == b"x"
        with anyio.fail_after(GUARD):
            while sealer.is_outdated("oauth grants", path.read_text()):
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert await FileStore(path, Sealer(NEW.encode())).load(GrantKey("up")) == grant()


async def test_a_secret_that_is_dropped_at_once_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    sealer = Sealer(OLD.encode())
    rotation = SecretRotation(settings(OLD), sealer, MemoryStore())
    session = sealer.seal("session", b"x")
    rotation.reconfigure(settings(OLD))
    rotation.reconfigure(settings(NEW, OLD))
    assert "no longer listed" not in capfd.readouterr().out
    rotation.reconfigure(settings("a third of some length"))
    assert "no longer listed" in capfd.readouterr().out
    with pytest.raises(Unsealable):
        sealer.open("session", session)


def configured(port: int, *secrets: str) -> Json:
    server = {"command": PYTHON, "args": ["-I", "-S", PID], "era": "legacy"}
    return configuration({"a": server}, port=port, secret=list(secrets), watch=False)


async def rotate(running: Gateway, wanted: Json) -> None:
    since = len(running.log.entries)
    write(running.folder, wanted)
    running.process.send_signal(signal.SIGHUP)
    with anyio.fail_after(GUARD):
        await running.log.says(lambda entry: entry.get("event") == "configuration reloaded", since)


@dataclass
class Load:
    """Calls of one client, one after the other; none may fail."""

    client: Client
    answered: int = 0
    ending: bool = False
    """Each runner ends with its next answer: the SDK's client fails by one that comes while it closes."""
    _news: Wakeup = field(default_factory=Wakeup)

    async def run(self) -> None:
        while not self.ending:
            assert not (await self.client.call_tool("a__who", {})).is_error
            self.answered += 1
            self._news.notify_all()

    async def answers(self, more: int) -> None:
        wanted = self.answered + more
        with anyio.fail_after(GUARD):
            while self.answered < wanted:
                await self._news.wait()


async def test_a_secret_is_replaced_under_load_and_no_session_is_lost(tmp_path: Path) -> None:
    port = free_port()
    async with gateway(tmp_path, configured(port, OLD)) as running:
        url = f"{running.url}/mcp"
        async with Client(url, mode="legacy") as client, anyio.create_task_group() as tasks:
            load = Load(client)
            for _ in range(4):
                tasks.start_soon(load.run)
            await load.answers(20)
            await rotate(running, configured(port, NEW, OLD))
            await load.answers(20)
            async with Client(url, mode="legacy") as later:
                assert not (await later.call_tool("a__who", {})).is_error
                await rotate(running, configured(port, NEW))
                await load.answers(20)
                assert not (await later.call_tool("a__who", {})).is_error
            load.ending = True


async def test_what_the_old_secret_sealed_outlives_a_restart_while_it_is_listed(tmp_path: Path) -> None:
    port = free_port()
    async with gateway(tmp_path, configured(port, OLD)):
        old = await opened(port)
    async with gateway(tmp_path, configured(port, NEW, OLD)):
        assert await status(port, old) == 200
        new = await opened(port)
    async with gateway(tmp_path, configured(port, NEW)):
        assert (await status(port, old), await status(port, new)) == (404, 200)


@asynccontextmanager
async def posted(port: int, method: str, params: Json, **headers: str) -> AsyncIterator[ClientResponse]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers["Accept"] = "application/json, text/event-stream"
    async with ClientSession() as http, http.post(f"http://127.0.0.1:{port}/mcp", json=body, headers=headers) as answer:
        yield answer


async def opened(port: int) -> str:
    """The id of a new session."""
    params = {"protocolVersion": LATEST_HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    async with posted(port, "initialize", params) as answer:
        return answer.headers["Mcp-Session-Id"]


async def status(port: int, session: str) -> int:
    async with posted(port, "tools/call", {"name": "a__who"}, **{"Mcp-Session-Id": session}) as answer:
        return answer.status
