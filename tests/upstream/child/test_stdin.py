"""The twin of `mcproxy.upstream.child.stdin`: a pipe whose other end reads at its leisure, or not at all."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO

import anyio
import pytest
from anyio.to_thread import run_sync

from mcproxy.upstream.child.stdin import ChildStdin, opened

pytestmark = pytest.mark.anyio

LARGE = b"x" * 1_000_000


@asynccontextmanager
async def pipe() -> AsyncIterator[tuple[BinaryIO, ChildStdin]]:
    with anyio.fail_after(5):
        async with opened() as (theirs, inlet):
            with os.fdopen(theirs, "rb") as child:
                yield child, inlet


async def writing_on(inlet: ChildStdin) -> None:
    while True:
        await inlet.write(b"line\n")
        await anyio.lowlevel.checkpoint()


async def test_lines_arrive_whole_and_in_order_and_all_of_them_before_the_end() -> None:
    lines = [LARGE + b"\n", b"short\n", LARGE + b"\n"]
    async with pipe() as (child, inlet), anyio.create_task_group() as tasks:

        async def write() -> None:
            for line in lines:
                await inlet.write(line)
            inlet.close()

        tasks.start_soon(write)
        assert await run_sync(child.readlines) == lines


async def test_who_writes_to_a_child_that_does_not_read_waits() -> None:
    async with pipe() as (child, inlet):
        await inlet.write(LARGE)
        with anyio.move_on_after(0.01) as waiting:
            await inlet.write(b"more")
        assert waiting.cancelled_caught
        assert len(await run_sync(child.read, len(LARGE))) == len(LARGE)
        await inlet.write(b"more")


async def test_a_child_that_does_not_read_for_long_is_told_from_one_that_has_nothing_to_read() -> None:
    async with pipe() as (child, inlet):
        with anyio.move_on_after(0.05) as nothing_to_read:
            await inlet.watch(0.01)
        assert nothing_to_read.cancelled_caught
        await inlet.write(LARGE)
        with pytest.raises(TimeoutError):
            await inlet.watch(0.01)
        assert not child.closed


async def test_nothing_is_written_where_nobody_reads_any_more() -> None:
    async with pipe() as (child, inlet):
        child.close()
        with pytest.raises(anyio.BrokenResourceError):
            await writing_on(inlet)
        await inlet.watch(60)
