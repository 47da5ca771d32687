"""Odd servers over stdio: what they print around their messages, how they start, exit and leave processes behind."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.fakes.clients.raw import over_http
from tests.field.stdio.test_answers import in_front_of
from tests.system.running import Json
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

WORKING = (
    "Banner JsonLogLines Prompt PromptEachTime Coloured ColouredBefore LinesEndInCrlf ByteOrderMark NulBytes ManyLines "
    "LongLogLines MuchStderr DiesUnlessInitialize SilentOnUnknown GoesOn LargeAnswers ClosesStdout "
    "HelperHoldsPipes HelperInItsOwnSession BehindAShell RefusesVersion RefusesVersionWithList "
    "RefusesVersionWithSupportedVersions RefusesVersionInTheMessage RefusesVersionWithoutList "
    "RefusesVersionAsInvalidRequest SlowStart"
)
REFUSED = {"AsLsp": "Content-Length", "ExitsAtOnce": "FATAL: FIELD_TOKEN is not set"}


async def called(folder: Path, server: str, **settings: object) -> list[Json]:
    """The answers to two calls through a gateway. What the server started has ended after it: see `nothing_is_left`."""
    async with (
        in_front_of(folder, server, env={"ODD_SECONDS": "3"}, **settings) as running,
        over_http(running.server("odd")) as client,
    ):
        await client.initialize()
        return [await client.call("echo", {"text": text}) for text in ("a", "b")]


@pytest.mark.parametrize("server", WORKING.split())
async def test_an_odd_server_over_stdio_answers_each_call(server: str, tmp_path: Path) -> None:
    answers = await called(tmp_path, server)
    texts = [answer["result"]["content"][0]["text"].rstrip("z") for answer in answers]
    assert texts == ["echo: a", "echo: b"]


async def test_a_server_that_exits_after_each_call_serves_the_next_once_that_is_noticed(tmp_path: Path) -> None:
    """A call that is written while the child exits has an unknown outcome, and is not repeated by the gateway."""
    async with in_front_of(tmp_path, "ExitsAfterCall") as running, over_http(running.server("odd")) as client:
        await client.initialize()
        for text in ("a", "b", "c"):
            with anyio.fail_after(GUARD):
                answer = await client.call("echo", {"text": text})
                while "the outcome is unknown" in answer.get("error", {}).get("message", ""):
                    answer = await client.call("echo", {"text": text})
            assert answer["result"]["content"][0]["text"] == f"echo: {text}"


@pytest.mark.parametrize("server", REFUSED)
async def test_the_error_names_why_a_server_cannot_be_used(server: str, tmp_path: Path) -> None:
    for answer in await called(tmp_path, server, timeouts={"connect": 3}):
        assert REFUSED[server] in answer["error"]["message"]


async def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    for answer in await called(tmp_path, "Banner", command="no-such-command-here"):
        assert "no-such-command-here" in answer["error"]["message"]
