"""A stateless client, a server of the handshake era, and a tool with a side effect: whatever is done to the state that
the client carries meanwhile, the tool runs once.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import aiohttp
import anyio
import pytest

from mcproxy.protocol.jsonrpc import INVALID_PARAMS
from tests.downstream.modern import PREFIX, headers_of, request
from tests.judge import Judge
from tests.system.running import ODD_SERVER, Gateway, Json, configuration, gateway
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

COMMAND, *ARGUMENTS = ODD_SERVER
ACCEPTED: Json = {"action": "accept", "content": {"name": "Ada"}}
CAPABLE: Json = {f"{PREFIX}/clientCapabilities": {"elicitation": {}}}
ONCE = {"begun": 1, "paid": 1}
NEVER_PAID = {"begun": 1, "paid": 0}


@dataclass
class StatelessClient:
    """Every message is judged by the official types."""

    http: aiohttp.ClientSession
    running: Gateway
    judge: Judge = field(default_factory=Judge)
    _ids: count[int] = field(default_factory=lambda: count(1))

    async def call(self, tool: str, *, alone: bool = False, **params: object) -> Json:
        """The whole answer: of the endpoint that shows every server, or that shows the odd one `alone`."""
        url, name = (self.running.server("odd"), tool) if alone else (f"{self.running.url}/mcp", f"odd__{tool}")
        message = request(next(self._ids), "tools/call", {"name": name, **params}, CAPABLE)
        self.judge.sent(message)
        headers = {"Accept": "application/json, text/event-stream", **headers_of(message)}
        async with self.http.post(url, json=message, headers=headers) as response:
            answer: Json = await response.json()
        self.judge.received(answer)
        return answer

    async def paused(self) -> Json:
        """The params of a retry: the state that `pay` gave, and an answer to what it asks."""
        result = (await self.call("pay"))["result"]
        assert result["resultType"] == "input_required"
        answers = dict.fromkeys(result["inputRequests"], ACCEPTED)
        return {"requestState": result["requestState"], "inputResponses": answers}

    async def counted(self) -> Json:
        """How often the tool began, and how often it did what it is for."""
        found: Json = json.loads((await self.call("paid"))["result"]["content"][0]["text"])
        return found


@asynccontextmanager
async def stateless_client(folder: Path, **bridge: object) -> AsyncIterator[StatelessClient]:
    settings = configuration({"odd": {"command": COMMAND, "args": ARGUMENTS}}, bridge=bridge)
    async with gateway(folder, settings) as running, aiohttp.ClientSession() as http:
        with anyio.fail_after(GUARD):
            yield StatelessClient(http, running)


def refused(answer: Json) -> bool:
    """Whether it was the state that was not good."""
    error = answer.get("error", {})
    return error.get("code") == INVALID_PARAMS and '"requestState"' in error["message"]


async def test_a_retry_ends_the_call_that_it_continues(tmp_path: Path) -> None:
    async with stateless_client(tmp_path) as client:
        answer = await client.call("pay", **await client.paused())
        assert json.loads(answer["result"]["content"][0]["text"]) == {"result": ACCEPTED}
        assert await client.counted() == ONCE


async def test_a_replayed_state_runs_nothing(tmp_path: Path) -> None:
    async with stateless_client(tmp_path) as client:
        retry = await client.paused()
        assert "result" in await client.call("pay", **retry)
        assert refused(await client.call("pay", **retry))
        assert await client.counted() == ONCE


async def test_a_state_that_was_tampered_with_runs_nothing_and_harms_nothing(tmp_path: Path) -> None:
    async with stateless_client(tmp_path) as client:
        retry = await client.paused()
        state = retry["requestState"]
        flipped = state[:20] + ("B" if state[20] == "A" else "A") + state[21:]
        for tampered in (flipped, state[:-1], state + "A", "", "x"):
            assert refused(await client.call("pay", **{**retry, "requestState": tampered})), tampered
        assert await client.counted() == NEVER_PAID
        assert "result" in await client.call("pay", **retry)
        assert await client.counted() == ONCE


@pytest.mark.parametrize("racers", [2, 8])
async def test_of_several_retries_at_once_one_wins(tmp_path: Path, racers: int) -> None:
    answers: list[Json] = []
    async with stateless_client(tmp_path) as client:
        retry = await client.paused()

        async def race() -> None:
            answers.append(await client.call("pay", **retry))

        async with anyio.create_task_group() as tasks:
            for _ in range(racers):
                tasks.start_soon(race)
        assert await client.counted() == ONCE
    assert sum("result" in answer for answer in answers) == 1
    assert sum(refused(answer) for answer in answers) == racers - 1


async def test_an_expired_state_runs_nothing_and_its_call_is_given_up(tmp_path: Path) -> None:
    async with stateless_client(tmp_path, park_ttl="200ms") as client:
        retry = await client.paused()
        assert "given_up: 1" in (await client.call("given_up"))["result"]["content"][0]["text"]
        assert refused(await client.call("pay", **retry))
        assert await client.counted() == NEVER_PAID


async def test_a_state_is_good_for_its_own_request_alone(tmp_path: Path) -> None:
    async with stateless_client(tmp_path) as client:
        retry = await client.paused()
        assert refused(await client.call("form", **retry))
        assert refused(await client.call("pay", arguments={"more": 1}, **retry))
        assert refused(await client.call("pay", alone=True, **retry))
        assert await client.counted() == NEVER_PAID
        assert "result" in await client.call("pay", **retry)
        assert await client.counted() == ONCE


async def test_a_restarted_gateway_says_that_the_call_is_over(tmp_path: Path) -> None:
    async with stateless_client(tmp_path) as client:
        retry = await client.paused()
    async with stateless_client(tmp_path) as client:
        answer = await client.call("pay", **retry)
        assert refused(answer)
        assert "over" in answer["error"]["message"]
        assert await client.counted() == {"begun": 0, "paid": 0}
