"""Search with the official SDKs' clients, of both generations and languages: found, described, and called as directly.

Each player plays every behaviour twice at one endpoint with search: by the tool's own name, which is not listed, and
through a caller. Both transcripts are the same: results, errors, progress and what the client was asked.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import pytest

from mcproxy.catalog.search.own_tools import SCHEMAS
from tests.depth import sampled
from tests.system.running import Clients, Json, configuration, gateway, need_npm
from tests.system.scripts import ANSWERS, call
from tests.system.test_matrix import MODES, PLAYERS, Cell, Player, upstream

PATIENCE: Final = 240.0
CELLS: Final = [Cell("python", "legacy", "stdio"), Cell("typescript", "modern", "stdio")]
BEHAVIOURS: Final[dict[str, Json]] = {
    "add": {"a": 1, "b": 2},
    "report": {},
    "elicit": {},
    "sample": {},
    "roots": {},
    "fail": {},
    "refuse": {},
    "large": {"size": 100_000},
}
HTTP_PLAYERS: Final = sampled([player for player in PLAYERS if player.transport == "http"], one_in=2)
ROUNDS: Final = [(cell, tool) for cell in CELLS for tool in BEHAVIOURS]
OPENING: Final[list[Json]] = [
    {"do": "tools/list"},
    call("find_tools", query="add two numbers"),
    call("describe_tools", names=[f"{CELLS[0]}__add"]),
    call("call_read", name=f"{CELLS[0]}__add", arguments={"a": 1, "b": 2}),
]


@dataclass(frozen=True)
class PlayedTwice:
    opening: list[Json]
    direct: dict[tuple[Cell, str], Json]
    indirect: dict[tuple[Cell, str], Json]
    questions: list[Json]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def url(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    need_npm()
    async with AsyncExitStack() as stack:
        servers = {str(cell): await upstream(cell, stack) for cell in CELLS}
        settings = configuration(servers, list_wait=60)
        settings["endpoints"] = {"agent": {"discovery": "search"}}
        running = await stack.enter_async_context(gateway(tmp_path_factory.mktemp("search"), settings))
        yield f"{running.url}/mcp/agent"


@pytest.fixture(scope="module")
async def clients(anyio_backend: str) -> AsyncIterator[Clients]:
    made = Clients()
    yield made
    await made.aclose()


@pytest.fixture(scope="module", params=HTTP_PLAYERS, ids=str)
async def played(anyio_backend: str, request: pytest.FixtureRequest, url: str, clients: Clients) -> PlayedTwice:
    player: Player = request.param
    direct = [call(f"{cell}__{tool}", **BEHAVIOURS[tool]) for cell, tool in ROUNDS]
    indirect = [call("call_destructive", name=f"{cell}__{tool}", arguments=BEHAVIOURS[tool]) for cell, tool in ROUNDS]
    script = {
        "mode": MODES[player.era],
        "transport": {"kind": "http", "url": url},
        "answers": ANSWERS,
        "steps": [*OPENING, *direct, *indirect],
    }
    found = json.loads(await clients.play(player.sdk, script, within=PATIENCE))
    steps, rounds = found["steps"], len(ROUNDS)
    opening, steps = steps[: len(OPENING)], steps[len(OPENING) :]
    return PlayedTwice(
        opening,
        dict(zip(ROUNDS, steps[:rounds], strict=True)),
        dict(zip(ROUNDS, steps[rounds:], strict=True)),
        found["questions"],
    )


def text(step: Json) -> str:
    assert "result" in step, step
    return str(step["result"]["content"][0]["text"])


def test_five_tools_are_listed(played: PlayedTwice) -> None:
    assert [tool["name"] for tool in played.opening[0]["result"]["tools"]] == list(SCHEMAS)


def test_a_tool_is_found_described_and_refused_by_the_wrong_caller(played: PlayedTwice) -> None:
    _, found, described, refused = played.opening
    assert f"{CELLS[0]}__add(a: " in text(found)
    assert f'"name":"{CELLS[0]}__add"' in text(described)
    assert text(refused) == f"{CELLS[0]}__add is not for call_read: call it with call_destructive."
    assert refused["result"]["isError"] is True


@pytest.mark.parametrize(("cell", "tool"), ROUNDS, ids=lambda part: str(part))
def test_r80_a_call_through_a_caller_is_the_call_itself(played: PlayedTwice, cell: Cell, tool: str) -> None:
    direct, indirect = played.direct[cell, tool], played.indirect[cell, tool]
    assert "late" not in direct
    assert indirect == direct


def test_what_servers_ask_is_asked_both_times(played: PlayedTwice) -> None:
    asked = [question["method"] for question in played.questions]
    assert len(asked) > 0
    assert asked[: len(asked) // 2] == asked[len(asked) // 2 :]
