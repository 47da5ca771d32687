"""A real Redis for the tests of replicas: one server for the session, emptied for each test."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from mcproxy.cluster.store.protocol import Store
from mcproxy.cluster.store.redis_store import opened_store
from tests.ports import free_port
from tests.timeouts import GUARD


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
        with anyio.fail_after(GUARD):
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


@dataclass
class RedisProxy:
    """Passes bytes both ways, as far as it is told to."""

    target: int
    delay: float = 0
    refuses: bool = False
    port: int = 0
    held: int = 0
    """Pieces that it was given and held."""
    passed: int = 0
    """Pieces that it passed on."""
    _word: bytes = b""
    _pass: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._pass.set()

    def hold(self, word: bytes = b"") -> None:
        """Nothing passes that has `word` in it until `release`; without one, nothing at all: as a Redis that hangs."""
        self._word = word
        self._pass.clear()

    def release(self) -> None:
        self._pass.set()

    def refuse(self) -> None:
        """Ends all connections, and makes no more: as a Redis that is gone."""
        self.refuses = True
        for writer in self._writers:
            writer.close()

    def admit(self) -> None:
        self.refuses = False

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield f"redis://127.0.0.1:{self.port}/0"
        finally:
            self.release()
            self.refuse()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.close()
            return
        with suppress(OSError):
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers |= {writer, inner_writer}
            await asyncio.gather(self._copy(reader, inner_writer), self._copy(inner_reader, writer))
        writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self._word in data:
                    self.held += not self._pass.is_set()
                    await self._pass.wait()
                await asyncio.sleep(self.delay)
                writer.write(data)
                self.passed += 1
        writer.close()
        self._writers.discard(writer)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """Not started yet."""
    server = RedisServer(tmp_path, free_port())
    yield server
    server.stop()


@pytest.fixture
async def redis_store(redis_server: RedisServer) -> AsyncIterator[Store]:
    """A store in a Redis of its own."""
    await redis_server.start()
    async with opened_store(redis_server.url, GUARD) as store:
        yield store
