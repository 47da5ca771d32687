"""Every official SDK as a client meets a result over its limit, and reads the whole of it by the link."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.depth import sampled
from tests.system.running import PYTHON, Clients, Gateway, Json, configuration, gateway, need_npm
from tests.system.scripts import call, read
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

SIZE, LIMIT = 200_000, 20_000
PLAYERS = sampled(
    [
        *(("python1", "legacy"), ("typescript1", "legacy")),
        *((sdk, mode) for sdk in ("python2", "typescript2") for mode in ("legacy", "auto")),
    ],
    one_in=2,
)


@asynccontextmanager
async def in_front_of_a_server(folder: Path) -> AsyncIterator[Gateway]:
    server = {
        "command": PYTHON,
        "args": ["-W", "ignore", "-m", "tests.system.matrix_server"],
        "results": {"max_bytes": LIMIT},
    }
    async with gateway(folder, configuration({"up": server})) as running:
        yield running


async def played(clients: Clients, sdk: str, mode: str, url: str, step: Json) -> Json:
    script = {
        "transport": {"kind": "http", "url": f"{url}/mcp"},
        "mode": mode,
        "answers": {},
        "steps": [{**step, "quiet": True}],
    }
    transcript: Json = json.loads(await clients.play(sdk, script, within=GUARD))
    answer: Json = transcript["steps"][0]["result"]
    return answer


@pytest.mark.parametrize(("sdk", "mode"), PLAYERS)
async def test_each_client_gets_a_part_and_reads_the_whole(tmp_path: Path, sdk: str, mode: str) -> None:
    need_npm()
    async with in_front_of_a_server(tmp_path) as running, aclosing(Clients()) as clients:
        with anyio.fail_after(GUARD):
            result = await played(clients, sdk, mode, running.url, call("up__large", size=SIZE))
            text, link, *_ = result["content"]
            assert len(text["text"]) < LIMIT + 500
            assert link["type"] == "resource_link"
            whole = await played(clients, sdk, mode, running.url, read(link["uri"]))
            piece = await played(clients, sdk, mode, running.url, read(f"{link['uri']}/0-1000"))
    assert len(whole["contents"][0]["text"]) == SIZE
    assert piece["contents"][0]["text"] == whole["contents"][0]["text"][:1000]
    assert text["text"].startswith(piece["contents"][0]["text"])
