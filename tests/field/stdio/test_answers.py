"""What odd servers answer arrives valid: each through a real gateway, read by the official SDKs, which validate all.

A case is a server of `odd_servers` and what its tool's call is to give; its list, its resource and the other call are
checked alike.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.field.stdio import odd_servers
from tests.system.running import PYTHON, Clients, Gateway, Json, configuration, serving, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

ODD = str(Path(odd_servers.__file__))
CLIENTS = ("python1", "python2")
STEPS: list[Json] = [
    {"do": "tools/list"},
    {"do": "tools/call", "params": {"name": "echo", "arguments": {"text": "a"}}},
    {"do": "tools/call", "params": {"name": "echo", "arguments": {"text": "fail"}}},
    {"do": "resources/read", "params": {"uri": "odd:memo"}},
]


def text(*texts: str, **more: object) -> Json:
    return {"content": [{"type": "text", "text": each} for each in texts], **more}


PLAIN = text("echo: a")
SAID = text('{"said": "echo: a"}', structuredContent={"said": "echo: a"})
DISK = {"error": "the disk is full"}
RESULTS: dict[str, Any] = {
    **dict.fromkeys(
        [
            "IdsAreTexts",
            "IdsAreFloats",
            "ErrorNullBesideResult",
            "ResultNullBesideError",
            "NoJsonrpc",
            "JsonrpcIsANumber",
            "AnswersAreLists",
            "NoCapabilities",
            "CapabilitiesNull",
            "CapabilitiesList",
            "CapabilityTrue",
            "CapabilityNull",
            "NoServerInfo",
            "ServerInfoText",
            "ServerInfoWithoutVersion",
            "NoProtocolVersion",
            "InstructionsNull",
            "ErrorsHaveIdNull",
            "ErrorsHaveNoId",
            "ContentIsText",
            "ContentIsABlock",
            "ToolResultText",
            "ResultIsText",
            "ResultIsContentList",
            "StructuredArray",
            "StructuredNull",
            "MetaNull",
            "BlockWithoutType",
            "IsErrorNull",
            "ContentsIsOne",
            "ContentsWithoutUri",
            "ContentsIsText",
            "NoInputSchema",
            "InputSchemaNull",
            "InputSchemaTrue",
            "InputSchemaEmpty",
            "InputSchemaList",
            "SnakeCase",
            "Capitals",
            "OddMembers",
            "PropertiesList",
            "RequiredTrue",
            "DanglingRef",
            "BadTools",
            "OddNames",
            "ListedTwice",
            "CursorNull",
            "CursorEmpty",
            "CursorSame",
            "CursorNumber",
            "CursorFalse",
            "ListIsBare",
            "NoPrompts",
            "HalfPairInList",
            "NumbersInList",
        ],
        PLAIN,
    ),
    **dict.fromkeys(
        ["CodeFloat", "CodeText", "CodeWord", "NoCode", "ErrorText", "ErrorWithoutMessage", "MessageNull", "CodeHuge"],
        DISK,
    ),
    **dict.fromkeys(["NullDataAndHalfPair", "Latin1Error"], DISK),
    **dict.fromkeys(["ContentNull", "NoContent", "ToolResult"], SAID),
    "ContentIsAListOfTexts": text("echo: a", "more"),
    "StructuredArrayAlone": text('["echo: a"]'),
    "StructuredText": text('"echo: a"'),
    "UnknownBlocks": text('{"type": "json", "json": {"said": "echo: a"}}', "more"),
    "ErrorBlock": text("echo: a", isError=True),
    "TextIsAnObject": text('{"said": "echo: a"}'),
    "TextIsANumber": text("42", '{"type": "text", "text": null}', '{"type": "text"}'),
    "ImageWithoutType": text('{"type": "image", "data": "AAAA"}', "echo: a"),
    "IsErrorText": text("echo: a", isError=True),
    "HalfPair": text("echo: a \ufffd"),
    "Numbers": text(
        "echo: a",
        structuredContent={"odd": [None, None, None, 12345678901234567890123], "NaN": "NaN, Infinity"},
    ),
    "Latin1": text("echo: a gr\ufffd\ufffder"),
    "ControlCharacters": text("echo: \t\x1b[1ma"),
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def clients(anyio_backend: str) -> AsyncIterator[Clients]:
    async with aclosing(Clients()) as found:
        yield found


@asynccontextmanager
async def in_front_of(folder: Path, server: str, **settings: object) -> AsyncIterator[Gateway]:
    """A gateway with one odd server."""
    odd = {"command": PYTHON, "args": [ODD, server], "prefix": "", **settings}
    file = write(folder, configuration({"odd": odd}, watch=False))
    async with serving(folder, file) as running:
        yield running


async def played(clients: Clients, client: str, running: Gateway) -> list[Json]:
    script = {"transport": {"kind": "http", "url": running.server("odd")}, "answers": {}, "steps": STEPS}
    steps: list[Json] = json.loads(await clients.play(client, script, within=GUARD))["steps"]
    return steps


@pytest.mark.parametrize("server", RESULTS)
async def test_a_validating_client_takes_all_that_an_odd_server_says(
    server: str, clients: Clients, tmp_path: Path
) -> None:
    expected = RESULTS[server]
    async with in_front_of(tmp_path, server) as running:
        for client in CLIENTS:
            tools, call, second, memo = await played(clients, client, running)
            assert "echo" in [tool["name"] for tool in tools["result"]["tools"]]
            if "error" in expected:
                assert expected["error"] in call["error"]["message"]
            else:
                assert call["result"] == expected
            assert "result" in second or "the disk is full" in second["error"]["message"]
            assert "hello" in memo["result"]["contents"][0]["text"]
