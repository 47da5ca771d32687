"""The official Python SDKs of both generations through nginx and three replicas: each request reaches the next replica.

The behaviours are those of `tests.system.test_matrix`, with servers over HTTP, which all replicas share. Left out is
what these servers tell only the session that caused it: another replica's connection is another session to them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.cluster.conftest import RedisServer
from tests.cluster.replicas import Cluster, cluster
from tests.system.running import SDK1, Clients, Json
from tests.system.scripts import ANSWERS
from tests.system.test_matrix import BEHAVIOURS, LARGE, MODES, UPDATED, Cell, Player, Transcript, said, upstream

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

CELLS = [Cell("python", era, "http") for era in ("legacy", "modern")]
PLAYERS = [
    Player(sdk, era, "http") for sdk, era in (("python1", "legacy"), ("python2", "legacy"), ("python2", "modern"))
]
SHARED = frozenset({"list change"})
"""What a server tells only the session that caused it."""


@pytest.fixture
async def three(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    await redis_server.start()
    async with AsyncExitStack() as stack:
        upstreams = {str(cell): await upstream(cell, stack) for cell in CELLS}
        yield await stack.enter_async_context(cluster(tmp_path, upstreams, redis_server.url, list_wait=60))


@pytest.mark.parametrize("player", PLAYERS, ids=str)
async def test_an_sdk_meets_three_replicas_as_it_meets_one(three: Cluster, player: Player) -> None:
    if player.sdk == "python1" and not SDK1.exists():
        pytest.skip("the first SDK is not set up: run `make test`")
    clients = Clients()
    try:
        transcript = await play(clients, f"{three.url}/mcp", player)
    finally:
        await clients.aclose()
    for cell in CELLS:
        assert said(transcript.met(cell, "call")[0]) == "3"
        assert transcript.met(cell, "read")[0]["result"]["contents"][0]["text"] == "hello"
        assert [report[:2] for report in transcript.met(cell, "progress")[0]["progress"]] == [[1, 3], [2, 3], [3, 3]]
        assert transcript.levels_of(f"{cell} aloud") == ["info", "warning", "error"]
        assert json.loads(said(transcript.met(cell, "accept")[0]))["content"] == {"name": "Ada"}
        assert json.loads(said(transcript.met(cell, "decline")[0]))["action"] == "decline"
        assert json.loads(said(transcript.met(cell, "sampling")[0]))["model"] == "fixed"
        assert json.loads(said(transcript.met(cell, "roots")[0]))["roots"] == ANSWERS["roots/list"]["roots"]
        assert transcript.met(cell, "failure")[0]["result"]["isError"] is True
        assert transcript.met(cell, "error")[0]["error"]["code"] == -31999
        assert len(said(transcript.met(cell, "large")[0])) == LARGE
        assert said(transcript.met(cell, "cancel")[1]) == "given_up: done"
        if player.era == "legacy":
            assert transcript.levels_of(f"{cell} softly") == ["warning", "error"]
        if player.era == cell.era:
            heard = [update["params"]["uri"] for update in transcript.notifications(UPDATED)]
            assert heard.count(cell.memo) == 1


async def play(clients: Clients, url: str, player: Player) -> Transcript:
    parts = [
        (cell, behaviour, steps(cell))
        for cell in CELLS
        for behaviour, steps in BEHAVIOURS.items()
        if behaviour not in SHARED and not (behaviour == "level" and player.era == "modern")
    ]
    parts = [part for part in parts if part[1] != "update" or player.era == part[0].era]
    opening: list[Json] = [
        {"do": "tools/list"},
        {"do": "listen", "params": {"uris": [cell.memo for cell in CELLS]}},
    ]
    script = {
        "mode": MODES[player.era],
        "transport": {"kind": "http", "url": url},
        "answers": ANSWERS,
        "steps": opening + [step for *_, steps in parts for step in steps],
    }
    found = json.loads(await clients.play(player.sdk, script, within=240))
    outcomes = iter(found["steps"])
    tools = next(outcomes)["result"]["tools"]
    next(outcomes)
    return Transcript(
        frozenset(tool["name"] for tool in tools),
        {(cell, behaviour): [next(outcomes) for _ in steps] for cell, behaviour, steps in parts},
        found["notifications"],
    )
