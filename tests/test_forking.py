"""The twin of `tests.forking`: a program that was forked is as one that was started."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest
from anyio.abc import Process

from tests import processes
from tests.forking import ForkServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[ForkServer]:
    running = ForkServer(["json"])
    yield running
    running.end()


async def told(process: Process) -> str:
    """What it wrote to stderr, to the end."""
    assert process.stderr is not None
    return b"".join([chunk async for chunk in process.stderr]).decode()


async def test_a_program_has_its_command_line_and_environment_and_is_a_child_of_this_process(
    server: ForkServer,
) -> None:
    for argument in ("one", "other"):
        async with await server.open_process(["tests.fakes.forked", argument], {"ONLY": "this"}) as process:
            arguments, environment, parent = json.loads(await told(process))
        assert (arguments, environment["ONLY"], parent) == ([argument], "this", os.getpid())
        assert "PATH" not in environment
        assert process.returncode == 3


async def test_a_program_that_is_killed_says_so_and_is_known_by_the_test_that_started_it(server: ForkServer) -> None:
    async with await server.open_process(["http.server", "0"], dict(os.environ)) as process:
        assert "test_a_program_that_is_killed" in processes.test_of(process.pid)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        process.kill()


async def test_nothing_is_left_of_a_server_that_is_ended(server: ForkServer) -> None:
    before = processes.descendants(os.getpid())
    async with await server.open_process(["tests.fakes.forked"], dict(os.environ)):
        pass
    server.end()
    assert processes.descendants(os.getpid()) == before
