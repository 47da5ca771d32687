"""An HTTP proxy that resolves names of its own, checks credentials, and notes what it is asked; and tinyproxy."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.ports import free_port

needs_tinyproxy = pytest.mark.skipif(shutil.which("tinyproxy") is None, reason="tinyproxy is not installed")


@dataclass
class Proxied:
    """`lines` are the request lines that it got; `names` leads names to ports of loopback."""

    port: int = 0
    lines: list[str] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    password: str | None = None
    """The pair that it wants, as `user:password`."""
    resets: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def proxying(
    names: Mapping[str, int], password: str | None = None, *, resets: bool = False
) -> AsyncIterator[Proxied]:
    """A proxy that knows the names, and nobody else does."""
    it = Proxied(names=dict(names), password=password, resets=resets)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await _serve(it, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        it.port = server.sockets[0].getsockname()[1]
        yield it
        for task in list(tasks):
            task.cancel()


async def _serve(it: Proxied, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, _, rest = head.partition("\r\n")
    it.lines.append(line)
    if it.resets:
        writer.transport.abort()
        return
    wanted = it.password and f"Proxy-Authorization: Basic {base64.b64encode(it.password.encode()).decode()}"
    if wanted and wanted not in rest:
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        return
    method, target, _ = line.split(" ")
    where = target if method == "CONNECT" else target.removeprefix("http://").partition("/")[0]
    host = where.rpartition(":")[0] if where.rpartition(":")[2].isdigit() else where
    if host not in it.names:
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        return
    inner, outer = await asyncio.open_connection("127.0.0.1", it.names[host])
    if method == "CONNECT":
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    else:
        path = "/" + target.removeprefix("http://").partition("/")[2]
        fields = [f for f in rest.split("\r\n") if f and not f.lower().startswith("proxy-")]
        outer.write("\r\n".join([f"{method} {path} HTTP/1.1", *fields, "", ""]).encode())
    try:
        await asyncio.gather(_pumped(reader, outer), _pumped(inner, writer))
    finally:
        outer.close()


async def _pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof() if writer.can_write_eof() else writer.close()


@asynccontextmanager
async def tinyproxy(folder: Path, *lines: str) -> AsyncIterator[int]:
    """The port of Debian's tinyproxy."""
    port = free_port()
    settings = folder / "tinyproxy.conf"
    settings.write_text(f"Port {port}\nListen 127.0.0.1\nTimeout 60\nMaxClients 20\n" + "\n".join(lines) + "\n")
    process = await asyncio.create_subprocess_exec(
        "tinyproxy", "-d", "-c", str(settings), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0)
            else:
                writer.close()
                break
        yield port
    finally:
        process.terminate()
        await process.wait()
