"""Overridden arguments and limited results, for the official SDKs' clients of both generations and languages.

Each client plays the same to the server itself and to the gateway, in front of a server of each era. The SDKs check
structured results by the tool's output schema: what is shortened has to be valid for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.system.running import PYTHON, Clients, Json, configuration, gateway, need_npm
from tests.system.scripts import call, read
from tests.system.test_large_results import PLAYERS
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

ERAS: Final = ("legacy", "modern")
SERVER: Final = [PYTHON, "-W", "ignore", "-m", "tests.fakes.servers.finder"]
LIMIT: Final = 8000
FEW, MANY = 3, 1000
ARGUMENTS: Final = {
    "path": {"value": "/srv/${caller.name}"},
    "q": {"rename": "query", "description": "What to look for."},
    "verbose": {"hide": True, "default": False},
}
WORDS: Final = "é \u2028 \\ \" 'x' 0.10"
CUT: Final = re.compile(
    r"(?P<head>.*)\n\[\.\.\. (?P<left_out>\d+) of (?P<whole>\d+) bytes are left out;[^\]]*\]\n(?P<tail>.*)", re.DOTALL
)
"""A text over the limit: its beginning, what is left out, and its end."""
DIRECT: Final = [
    call("search", path="/srv/anonymous", q=WORDS, verbose=False),
    call("enumerate_items", count=FEW),
    call("enumerate_items", count=MANY),
]


def through_the_gateway(era: str) -> list[Json]:
    return [
        call(f"{era}__search", query=WORDS),
        call(f"{era}__enumerate_items", count=FEW),
        call(f"{era}__enumerate_items", count=MANY),
        call(f"{era}__search", query=WORDS, path="/etc"),
        call(f"{era}__search", q=WORDS),
        {"do": "tools/list"},
    ]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def clients(anyio_backend: str) -> AsyncIterator[Clients]:
    made = Clients()
    yield made
    await made.aclose()


@pytest.fixture(scope="module")
async def url(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    server = {
        "command": SERVER[0],
        "args": SERVER[1:],
        "tools": {"overrides": {"search": {"arguments": ARGUMENTS}}},
        "results": {"max_bytes": LIMIT},
    }
    settings = configuration({era: {**server, "era": era} for era in ERAS})
    async with gateway(tmp_path_factory.mktemp("settings"), settings) as running:
        yield f"{running.url}/mcp"


async def played(clients: Clients, sdk: str, mode: str, transport: Json, steps: list[Json]) -> list[Json]:
    quiet = [{**step, "quiet": True} for step in steps]
    script = {"transport": transport, "mode": mode, "answers": {}, "steps": quiet}
    taken: list[Json] = json.loads(await clients.play(sdk, script, within=GUARD))["steps"]
    return taken


def told(step: Json) -> Json:
    """What a model is told."""
    return {name: step["result"].get(name) for name in ("content", "structuredContent", "isError")}


@pytest.mark.parametrize(("sdk", "mode"), PLAYERS)
async def test_r81_each_client_gets_what_the_server_says_to_the_arguments_that_the_settings_make(
    url: str, clients: Clients, sdk: str, mode: str
) -> None:
    need_npm()
    direct = await played(clients, sdk, mode, {"kind": "stdio", "command": SERVER}, DIRECT)
    for era in ERAS:
        http = {"kind": "http", "url": url}
        searched, few, many, fixed, renamed, listed = await played(clients, sdk, mode, http, through_the_gateway(era))
        assert told(searched) == told(direct[0])
        assert searched["result"]["structuredContent"] == {"path": "/srv/anonymous", "q": WORDS, "verbose": False}
        assert told(few) == told(direct[1])
        for refused, argument in ((fixed, "path"), (renamed, "q")):
            assert f"the argument '{argument}' is not one that callers may send" in refused["error"]["message"]
        entry = next(tool for tool in listed["result"]["tools"] if tool["name"] == f"{era}__search")
        assert list(entry["inputSchema"]["properties"]) == ["query"]
        assert_shortened(many, direct[2])
        links = [read(block["uri"]) for block in many["result"]["content"] if block["type"] == "resource_link"]
        wholes = [each["result"]["contents"][0]["text"] for each in await played(clients, sdk, mode, http, links)]
        text, structured = (direct[2]["result"][name] for name in ("content", "structuredContent"))
        assert text[0]["text"] in wholes
        assert structured in [json.loads(whole) for whole in wholes]


def assert_shortened(many: Json, whole: Json) -> None:
    """`many` is what is told of `whole` within the limit: its beginning, and of its text the end as well."""
    items, all_items = (step["result"]["structuredContent"]["items"] for step in (many, whole))
    assert 0 < len(items) < MANY
    assert items == all_items[: len(items)]
    text, all_text = (step["result"]["content"][0]["text"] for step in (many, whole))
    parts = CUT.fullmatch(text)
    assert parts is not None
    head, tail = parts["head"], parts["tail"]
    assert all_text.startswith(head)
    assert all_text.endswith(tail)
    assert min(len(head), len(tail)) > 100
    assert len(f"{head}{tail}".encode()) + int(parts["left_out"]) == int(parts["whole"]) == len(all_text.encode())
    assert len(json.dumps(many["result"]["structuredContent"], ensure_ascii=False).encode()) < 2 * LIMIT
    assert len(text.encode()) < LIMIT
