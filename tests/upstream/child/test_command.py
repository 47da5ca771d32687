"""The twin of `mcproxy.upstream.child.command`: commands that end by themselves, and those that do not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from mcproxy.settings import UpstreamSettings
from mcproxy.upstream.child.command import CommandFailed, environment, locate, output
from mcproxy.upstream.link import Unreachable
from tests.processes import descendants
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

PATH = {"PATH": os.environ["PATH"]}


async def printed(script: str, *, timeout: float = GUARD, limit: int = 1000) -> bytes:
    return await output([sys.executable, "-c", script], None, PATH, timeout=timeout, limit=limit)


def started_since(before: list[int]) -> list[int]:
    """Processes below this one that run; another test may have left some that are about to end."""
    return [pid for pid in descendants(os.getpid()) if pid not in before]


async def test_what_a_command_writes_to_its_stdout_is_returned_and_nothing_else() -> None:
    assert await printed("import sys; print('out'); sys.stderr.write('err')") == b"out\n"


async def test_a_command_reads_nothing() -> None:
    assert await printed("import sys; print(sys.stdin.read())") == b"\n"


async def test_r44_a_command_that_fails_is_not_quoted() -> None:
    with pytest.raises(CommandFailed) as failed:
        await printed("import sys; print('secret'); sys.stderr.write('secret'); sys.exit(3)")
    assert "ended with status 3" in str(failed.value)
    assert "secret" not in str(failed.value)


async def test_a_command_that_writes_on_and_on_is_ended() -> None:
    before = descendants(os.getpid())
    with pytest.raises(CommandFailed, match="more than 1000 bytes"):
        await printed("while True: print('x' * 100)")
    assert started_since(before) == []


async def test_r11_a_command_that_takes_too_long_is_ended_with_all_that_it_started() -> None:
    before = descendants(os.getpid())
    with pytest.raises(CommandFailed, match=r"did not end within 0\.5 s"):
        await printed("import subprocess; subprocess.run(['sleep', '1000'])", timeout=0.5)
    assert started_since(before) == []


async def test_r11_a_command_ends_with_those_who_wait_for_it(tmp_path: Path) -> None:
    before = descendants(os.getpid())
    began = tmp_path / "began"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(printed, f"import time; open({str(began)!r}, 'w'); time.sleep(1000)")
        with anyio.fail_after(GUARD):
            while not began.exists():
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert started_since(before) == []


async def test_r17_a_command_that_does_not_exist_is_named_with_where_it_was_sought() -> None:
    with pytest.raises(
        Unreachable, match=r"'no-such-program' is not installed, or not on the PATH: .*; looked in /nowhere"
    ):
        await output(["no-such-program"], None, {"PATH": "/nowhere"}, timeout=GUARD, limit=1)


def test_a_command_with_a_folder_is_sought_from_its_working_folder(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "helper"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    assert locate("bin/helper", str(tmp_path), {}) == str(program)


def test_r40_a_command_gets_none_of_the_variables_that_may_hold_a_secret() -> None:
    spec = UpstreamSettings(name="u", prefix="u", url="http://a", env={"OWN": "1"})
    assert environment(spec, {"HOME": "/h", "AWS_SECRET_ACCESS_KEY": "s"}) == {"HOME": "/h", "OWN": "1"}
