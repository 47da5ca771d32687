"""The twin of `mcproxy.cluster.store.redis_store`; what each store does is in `test_local`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import anyio
import pytest

from mcproxy.cluster.store.protocol import START, Store, StoreUnavailable, follows
from mcproxy.cluster.store.redis_store import opened_store, store_at
from tests.cluster.conftest import RedisServer
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

T = TypeVar("T")

INTRUDE = """
    redis.call('HSET', KEYS[1], 'intruder', 'not a time', '\\255', '99999999999999 \\255')
    redis.call('XADD', KEYS[2], '*', 'another', 'field')
    """
OPERATIONS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "get": lambda store: store.get("key"),
    "put": lambda store: store.put("key", b"", 1),
    "add": lambda store: store.add("key", b"", 1),
    "take": lambda store: store.take("key"),
    "remove": lambda store: store.remove("key"),
    "remove what is expected": lambda store: store.remove("key", b""),
    "replace": lambda store: store.replace("key", b"", 1, b""),
    "names": lambda store: store.names("key"),
    "announce": lambda store: store.announce("group", "name", b"", 1),
    "withdraw": lambda store: store.withdraw("group", "name"),
    "append": lambda store: store.append("stream", b"", 1),
    "end": lambda store: store.end("stream"),
    "read": lambda store: store.read("stream", START, 0.001),
    "run": lambda store: store.run(INTRUDE, ["group", "stream"], []),
}


async def test_a_server_that_hangs_fails_in_the_time_that_it_was_given_and_serves_again_afterwards(
    redis_server: RedisServer,
) -> None:
    await redis_server.start()
    assert redis_server.process is not None
    async with opened_store(redis_server.url, 0.5) as store:
        await _done(lambda: store.put("key", b"value", 600))
        os.kill(redis_server.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        with anyio.fail_after(GUARD), pytest.raises(StoreUnavailable):
            await store.get("key")
        assert time.monotonic() - began >= 0.4
        os.kill(redis_server.process.pid, signal.SIGCONT)
        assert await _done(lambda: store.get("key")) == b"value"


async def test_a_server_that_is_not_there_is_unavailable_and_one_that_comes_back_is_used(
    redis_server: RedisServer,
) -> None:
    async with opened_store(redis_server.url, GUARD) as store:
        with pytest.raises(StoreUnavailable):
            await store.get("key")
        await redis_server.start()
        await store.put("key", b"value", 60)
        redis_server.stop()
        with pytest.raises(StoreUnavailable):
            await store.announce("group", "name", b"", 1)
        await redis_server.start()
        assert await _done(lambda: store.announce("group", "name", b"", 1)) == {"name": b""}


async def test_a_stream_that_was_lost_and_begun_again_does_not_follow_the_one_before(redis_server: RedisServer) -> None:
    await redis_server.start()
    async with opened_store(redis_server.url, GUARD) as store:
        position = await store.append("stream", b"one", 10)
        redis_server.stop()
        await redis_server.start()
        await _done(lambda: store.append("stream", b"another", 10))
        await store.append("stream", b"two", 10)
        entries = await store.read("stream", START, 0.01)
        assert not any(follows(position, entry.position) for entry in entries)


@pytest.mark.parametrize(
    "answer", [b"$-1", b":7", b"*0", b"+OK", b"*2\r\n$1\r\n\xff\r\n:3", b"$1\r\n\xff", b"HTTP/1.1 400 Bad"]
)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_answer_of_another_form_than_redis_gives_is_no_other_exception(operation: str, answer: bytes) -> None:
    async with answering(answer) as url, opened_store(url, GUARD) as store:
        with suppress(StoreUnavailable):
            await OPERATIONS[operation](store)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_every_operation_that_fails_is_counted(operation: str) -> None:
    failures: list[None] = []
    async with answering(b"-OOM command not allowed") as url:
        store = store_at(url, GUARD, lambda: failures.append(None))
        with pytest.raises(StoreUnavailable):
            await OPERATIONS[operation](store)
        await store.close()
    assert len(failures) == 1


async def test_what_is_none_of_ours_among_the_members_and_in_the_stream_harms_nothing(
    redis_server: RedisServer,
) -> None:
    await redis_server.start()
    async with opened_store(redis_server.url, GUARD) as store:
        position = await store.append("stream", b"ours", 10)
        await store.run(INTRUDE, ["group", "stream"], [])
        assert await store.announce("group", "ours", b"value", 60) == {"ours": b"value", "\ufffd": b"\xff"}
        ours, intruder = await store.read("stream", START, 0.001)
        assert (ours.position, intruder.value) == (position, b"")


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """The URL of a server that gives the same answer to every command."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write((answer + b"\r\n") * len(re.findall(rb"^\*\d+\r\n", data, re.MULTILINE)))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"


async def _done(operation: Callable[[], Awaitable[T]]) -> T:
    """What it returns, once the store is there."""
    with anyio.fail_after(GUARD):
        while True:
            with suppress(StoreUnavailable):
                return await operation()
            await anyio.sleep(0.01)


def test_r74_a_gateway_without_a_cluster_imports_neither_redis_nor_the_cluster() -> None:
    program = "import sys, mcproxy.app, mcproxy.cli.commands; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [name for name in found.stdout.split() if "redis" in name or "cluster" in name] == [
        "mcproxy.settings.cluster"
    ]
