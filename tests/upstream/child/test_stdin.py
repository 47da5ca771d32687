"""The twin of `mcproxy.upstream.child.stdin`: a pipe whose other end reads at its leisure, or not at all."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO

import anyio
import pytest
from anyio.to_thread import run_sync

from mcproxy.upstream.child.stdin import ChildStdin, stdin_pipe
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

LARGE = b"x" * 1_000_000

BACKENDS = [
    pytest.param(("asyncio", {"use_uvloop": uvloop}), id=name)
    for name, uvloop in (("asyncio", False), ("uvloop", True))
]


@asynccontextmanager
async def pipe() -> AsyncIterator[tuple[BinaryIO, ChildStdin]]:
    with anyio.fail_after(GUARD):
        async with stdin_pipe() as (theirs, stdin):
            with os.fdopen(theirs, "rb") as child:
                yield child, stdin


async def writing_on(stdin: ChildStdin) -> None:
    while True:
        await stdin.write(b"line\n")
        await anyio.lowlevel.checkpoint()


async def test_lines_arrive_whole_and_in_order_and_all_of_them_before_the_end() -> None:
    lines = [LARGE + b"\n", b"short\n", LARGE + b"\n"]
    async with pipe() as (child, stdin), anyio.create_task_group() as tasks:

        async def write() -> None:
            for line in lines:
                await stdin.write(line)
            stdin.close()

        tasks.start_soon(write)
        assert await run_sync(child.readlines) == lines


async def test_a_write_waits_for_a_child_that_does_not_read() -> None:
    async with pipe() as (child, stdin):
        await stdin.write(LARGE)
        with anyio.move_on_after(0.01) as waiting:
            await stdin.write(b"more")
        assert waiting.cancelled_caught
        assert len(await run_sync(child.read, len(LARGE))) == len(LARGE)
        await stdin.write(b"more")


async def test_a_child_that_does_not_read_for_long_is_told_from_one_that_has_nothing_to_read() -> None:
    async with pipe() as (child, stdin):
        with anyio.move_on_after(0.05) as nothing_to_read:
            await stdin.watch(0.01)
        assert nothing_to_read.cancelled_caught
        await stdin.write(LARGE)
        with pytest.raises(TimeoutError):
            await stdin.watch(0.01)
        assert not child.closed


async def test_a_write_to_a_child_that_closed_its_stdin_is_refused() -> None:
    async with pipe() as (child, stdin):
        child.close()
        with pytest.raises(anyio.BrokenResourceError):
            await writing_on(stdin)
        await stdin.watch(60)


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are found through /proc")
async def test_a_pipe_that_is_given_up_while_it_is_opened_leaves_no_descriptor() -> None:
    before = os.listdir("/proc/self/fd")
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with stdin_pipe():
            pytest.fail("it was opened")
    await anyio.wait_all_tasks_blocked()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("anyio_backend", BACKENDS)
async def test_a_pipe_that_is_given_up_while_it_is_opened_never_closes_the_files_that_come_after_it() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with stdin_pipe():
            pytest.fail("it was opened")
    later = [descriptor for _ in range(4) for descriptor in os.pipe()]
    await anyio.wait_all_tasks_blocked()
    gc.collect()
    closed = [descriptor for descriptor in later if not is_open(descriptor)]
    for descriptor in set(later) - set(closed):
        os.close(descriptor)
    assert closed == []


@pytest.mark.parametrize("anyio_backend", BACKENDS)
async def test_our_end_of_a_pipe_is_closed_once() -> None:
    async with stdin_pipe() as (theirs, stdin):
        stdin.abort()
        await anyio.wait_all_tasks_blocked()
        assert os.read(theirs, 1) == b""
        later = os.pipe()
    gc.collect()
    assert all(is_open(descriptor) for descriptor in later)
    for descriptor in (theirs, *later):
        os.close(descriptor)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
