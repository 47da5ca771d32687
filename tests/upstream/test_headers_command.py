"""The twin of `mcproxy.upstream.headers_command`: when the command is run, and what becomes of what it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
import structlog
from anyio.abc import TaskGroup

from mcproxy.settings import Proxy, UpstreamSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.child.command import CommandFailed
from mcproxy.upstream.headers_command import COOLDOWN, HeadersCommand, parse_headers
from mcproxy.upstream.link import Rejected
from mcproxy.upstream.supervisor import Supervisor
from tests.fakes.authorization import Authorization, authorization
from tests.timeouts import GUARD
from tests.upstream.support import QUICK, failure, tool, value

pytestmark = pytest.mark.anyio

COUNTING = """
import pathlib, sys
runs, mode = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
count = len(runs.read_text()) + 1 if runs.exists() else 1
runs.write_text("r" * count)
if mode.exists():
    sys.exit(mode.read_text())
print(f"Authorization: Bearer printed-token-{count}")
"""
"""Prints a token that has the number of the run; fails while the file `mode` exists."""


@dataclass
class Running:
    folder: Path
    tasks: TaskGroup
    now: float = 1000.0

    def __post_init__(self) -> None:
        command = (sys.executable, "-c", COUNTING, str(self.folder / "runs"), str(self.folder / "mode"))
        self.spec = UpstreamSettings(
            name="web", prefix="web", type="http", url="http://127.0.0.1:9", headers_command=command, timeouts=QUICK
        )
        self.it = HeadersCommand(self.spec, self.tasks.start_soon, clock=lambda: self.now)

    @property
    def runs(self) -> int:
        return len((self.folder / "runs").read_text())

    def fail(self) -> None:
        (self.folder / "mode").write_text("printed-token-of-a-failure")

    def mend(self) -> None:
        (self.folder / "mode").unlink()

    async def sent(self) -> str:
        return (await self.it.credential()).headers["Authorization"]


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            yield Running(folder, tasks)
            tasks.cancel_scope.cancel()


async def test_the_command_is_run_once_however_many_requests_wait_for_it(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        assert here.it.present() is None
        sent: list[str] = []

        async def send() -> None:
            sent.append(await here.sent())

        async with anyio.create_task_group() as requests:
            for _ in range(20):
                requests.start_soon(send)
        assert sent == ["Bearer printed-token-1"] * 20
        assert here.it.present() is not None
        assert here.runs == 1


async def test_a_401_has_it_run_again_once_and_the_request_sent_again(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        await here.sent()
        again: list[bool] = []

        async def refused() -> None:
            again.append(await here.it.challenged(401, None, 1))

        async with anyio.create_task_group() as requests:
            for _ in range(20):
                requests.start_soon(refused)
        assert again == [True] * 20
        assert await here.sent() == "Bearer printed-token-2"
        assert here.runs == 2


async def test_r67_what_is_refused_right_after_it_was_printed_is_not_printed_in_a_loop(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        await here.sent()
        assert await here.it.challenged(401, None, 1)
        for _ in range(10):
            assert not await here.it.challenged(401, None, here.it.generation)
        assert here.runs == 2
        here.now += COOLDOWN
        assert await here.it.challenged(401, None, here.it.generation)
        assert here.runs == 3


async def test_what_was_accepted_meanwhile_may_end_at_any_time(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        await here.sent()
        for generation in range(1, 5):
            assert await here.it.challenged(401, None, generation)
            here.it.accepted()
        assert here.runs == 5


async def test_a_403_has_nothing_run(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        await here.sent()
        assert not await here.it.challenged(403, None, 1)
        assert here.runs == 1


async def test_r44_a_command_that_fails_is_said_and_not_quoted_and_run_again_after_a_while(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        here.fail()
        with structlog.testing.capture_logs() as logs:
            for _ in range(5):
                with pytest.raises(Rejected, match="ended with status 1: run it by hand to see why"):
                    await here.sent()
        assert here.runs == 1
        assert "printed-token" not in str(logs)
        here.mend()
        here.now += COOLDOWN
        assert await here.sent() == "Bearer printed-token-2"


async def test_r1_a_command_that_cannot_be_passed_to_the_system_harms_this_upstream_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        here.spec = here.spec.model_copy(update={"headers_command": (sys.executable, "a\0b")})
        it = HeadersCommand(here.spec, here.tasks.start_soon, clock=lambda: here.now)
        with pytest.raises(Rejected, match="an internal error: ValueError"):
            await it.credential()


@asynccontextmanager
async def linked(server: Authorization, folder: Path) -> AsyncIterator[Supervisor]:
    async with running(folder) as here:
        spec = here.spec.model_copy(update={"url": server.url, "headers": {"Authorization": "Bearer of the settings"}})
        upstream = Supervisor(spec, Proxy(), lambda event: None, Metrics())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(upstream.run)
            yield upstream
            tasks.cancel_scope.cancel()


async def test_r4_a_call_goes_with_what_was_printed_and_again_with_what_was_printed_since(tmp_path: Path) -> None:
    async with authorization() as server, linked(server, tmp_path) as upstream:
        server.valid.add("printed-token-1")
        assert value(await upstream(tool("any"))) == "done"
        server.valid = {"printed-token-2"}
        assert value(await upstream(tool("any"))) == "done"
        assert upstream.status.reconnects == 0
    assert server.served.count("tools/call") == 2
    assert set(server.resource_requests) == {"Bearer printed-token-1", "Bearer printed-token-2"}


async def test_r44_what_was_printed_is_redacted_where_the_server_quotes_it(tmp_path: Path) -> None:
    async with authorization(quotes_token=True) as server, linked(server, tmp_path) as upstream:
        server.valid.add("printed-token-1")
        message = failure(await upstream(tool("any"))).error.message
    assert "printed-token" not in message
    assert "[redacted]" in message


@pytest.mark.parametrize(
    "written",
    [
        '{"Authorization": "Bearer x", "X-Team": "a: b"}',
        "Authorization: Bearer x\nX-Team: a: b\n",
        "\r\nAuthorization:Bearer x\r\n  X-Team : a: b\r\n\r\n",
    ],
)
def test_headers_are_read_as_json_and_as_lines(written: str) -> None:
    assert parse_headers(written.encode()) == {"Authorization": "Bearer x", "X-Team": "a: b"}


@pytest.mark.parametrize(
    "written",
    [
        "",
        "{}",
        "secret",
        '{"X": 1}',
        '{"X": "secret"',
        '["secret"]',
        "X: secret\nX: secret",
        "X: secret\nx: secret",
        json.dumps({"X": "a\r\nY: secret"}),
        json.dumps({"X y": "secret"}),
        json.dumps({"X": "\x00secret"}),
        "Host: secret",
        "Content-Length: 5",
        "Mcp-Session-Id: secret",
        "Transfer-Encoding: secret",
        "\xff: secret",
    ],
)
def test_r44_what_is_no_headers_is_refused_and_not_quoted(written: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        parse_headers(written.encode("latin-1"))
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None
