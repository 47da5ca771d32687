"""A real Redis for the tests of replicas: one server for the session, emptied for each test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from mcproxy.cluster.store.protocol import Store
from mcproxy.cluster.store.redis_store import connected
from tests.system.running import free_port

START_TIMEOUT = 10.0


@dataclass
class RedisServer:
    """A redis-server on a Unix socket and on loopback, that a test may stop and start."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Returns when it answers."""
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not installed")
        options = ["--save", "", "--appendonly", "no", "--dir", str(self.folder), "--loglevel", "warning"]
        options += ["--bind", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(  # noqa: ASYNC220 it returns at once
            [program, *options], stdout=subprocess.DEVNULL
        )
        with anyio.fail_after(START_TIMEOUT):
            while True:
                try:
                    async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
                        await stream.send(b"PING\r\n")
                        if (await stream.receive()).startswith(b"+PONG"):
                            return
                except OSError:
                    await anyio.sleep(0.01)

    def stop(self) -> None:
        """Ends it at once, and what it held."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """Not started yet."""
    server = RedisServer(tmp_path, free_port())
    yield server
    server.stop()


@pytest.fixture
async def redis_store(redis_server: RedisServer) -> AsyncIterator[Store]:
    """A store in a Redis of its own; a wait of a second, since this machine may be busy."""
    await redis_server.start()
    async with connected(redis_server.url, 1.0) as store:
        yield store
