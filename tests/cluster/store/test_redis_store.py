"""The twin of `mcproxy.cluster.store.redis_store`; what each store does is in `test_local`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import pytest

from mcproxy.cluster.store.protocol import START, StoreUnavailable, follows
from mcproxy.cluster.store.redis_store import opened_store
from tests.cluster.conftest import RedisServer
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

T = TypeVar("T")


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
