"""The same client does the same things to a server and, through the gateway, to the same server: it sees no difference.

SDKs, as they are published, play one script for each server: directly, and over every transport and endpoint
that the gateway offers. Their transcripts must be equal, and every message that the gateway sent is judged.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.depth import IN_CI
from tests.fakes.clients.raw import over_http, over_stdio
from tests.judge import Judge
from tests.system.http_tap import tapped
from tests.system.running import (
    CLIENTS,
    ODD_SERVER,
    PYTHON,
    Clients,
    Gateway,
    Json,
    command,
    configuration,
    gateway,
    need_go,
    need_java,
    need_npm,
    need_rust,
    write,
)
from tests.system.scripts import ANSWERS, SCRIPTS, Script
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

PATIENCE = 240.0
"""Seconds that a client may take for its whole script, on a machine that is busy with others."""

TYPESCRIPT = {"typescript1", "typescript2"}


@dataclass(frozen=True)
class Way:
    """One way through the gateway. An upstream with a prefix is seen with its names changed."""

    prefix: str | None
    transport: Callable[[str, str], Json] | None
    """The client's transport, from the gateway's URL and the upstream's name; None for stdio."""


WAYS: dict[str, Way] = {
    "alone": Way(None, lambda url, name: {"kind": "http", "url": f"{url}/servers/{name}/mcp"}),
    "aggregated": Way("pre", lambda url, name: {"kind": "http", "url": f"{url}/mcp"}),
    "sse": Way("", lambda url, name: {"kind": "sse", "url": f"{url}/sse"}),
    "stdio": Way("", None),
}
THOROUGHLY = {"odd", "everything"}
"""Servers that are met over every way; the others over one, since what they add is their own answers."""
IMPOSSIBLE = {
    **{
        ("odd", client, way): "it takes an empty cursor for the end of a list, and so sees one page of the odd server"
        for client in ("go", "mcpgo")
        for way in WAYS
    },
    ("everything", "mcpgo", "sse"): "it hears no question over HTTP+SSE",
    **{(server, "rust", "sse"): "it has no HTTP+SSE" for server in THOROUGHLY},
    **{(server, "java", way): "it cannot cancel a call" for server in THOROUGHLY for way in WAYS},
}
"""By server, client and way: why it is not played."""
CASES = [
    pytest.param(server, client, way, id=f"{server}-{client}-{way}")
    for server in SCRIPTS
    for client in CLIENTS
    for way in WAYS
    if (server in THOROUGHLY or way == "alone") and (server, client, way) not in IMPOSSIBLE
][:: 1 if IN_CI else 5]
"""All of them in CI; elsewhere a fifth, in which each server, client and way is."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def stage(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    async with aclosing(Clients()) as clients, gateway(folder, configuration({}, watch=False)) as running:
        yield Stage(folder, clients, running)


@pytest.mark.parametrize(("server", "client", "way"), CASES)
async def test_a_client_sees_no_difference(server: str, client: str, way: str, stage: Stage) -> None:
    if SCRIPTS[server].npm or client in TYPESCRIPT:
        need_npm()
    if client in {"go", "mcpgo"}:
        need_go()
    if client == "rust":
        need_rust()
    if client == "java":
        need_java()
    play = Play(stage, server, client)
    direct = await play.directly()
    through = await (play.over_stdio(way) if WAYS[way].transport is None else play.over_network(way))
    assert_equal(direct, through, server)


@dataclass
class Stage:
    """What all plays share: clients and a gateway that run on. Each play has its server to itself, and fresh."""

    folder: Path
    clients: Clients
    running: Gateway
    direct: dict[tuple[str, str], Json] = field(default_factory=dict)
    """Transcripts of what each client met of each server itself."""


@dataclass
class Play:
    """One client's script for one server, and the ways to play it."""

    stage: Stage
    server: str
    client: str

    @property
    def script(self) -> Script:
        return SCRIPTS[self.server]

    async def directly(self) -> Json:
        key = self.server, self.client
        if key not in self.stage.direct:
            upstream = self.script.upstream(self._lay_out())
            transport = {"kind": "stdio", "command": [upstream["command"], *upstream["args"]], "env": upstream["env"]}
            self.stage.direct[key] = await self._played(transport)
        return self.stage.direct[key]

    async def over_network(self, way: str) -> Json:
        chosen, judge, running = WAYS[way], Judge(), self.stage.running
        assert chosen.transport is not None
        since = len(running.log.entries)
        try:
            async with running.serving(self._upstreams(chosen)), tapped(running.url, judge) as tap:
                found = await self._played(chosen.transport(tap.url, self.server), chosen.prefix)
        finally:
            print(*running.log.entries[since:], sep="\n", file=sys.stderr)
        assert tap.faults == []
        assert judge.verdicts > len(found["steps"]) - 5
        return found

    async def over_stdio(self, way: str) -> Json:
        chosen, judge, log = WAYS[way], Judge(), self.stage.folder / "tap.jsonl"
        folder = self.stage.folder / "stdio"
        folder.mkdir(exist_ok=True)
        file = write(folder, configuration(self._upstreams(chosen)))
        tap = [PYTHON, "-m", "tests.system.stdio_tap", str(log), *command(file, "--stdio")]
        found = await self._played({"kind": "stdio", "command": tap}, chosen.prefix)
        for entry in log.read_text().splitlines():
            party, line = json.loads(entry)
            (judge.sent if party == "sent" else judge.received)(json.loads(line))
        return found

    def _lay_out(self) -> Path:
        """A fresh folder for the server, always at the same place: answers name it."""
        place = self.stage.folder / "files"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        self.script.prepare(place)
        return place

    def _upstreams(self, way: Way) -> Json:
        upstream = self.script.upstream(self._lay_out())
        return {self.server: upstream if way.prefix is None else {**upstream, "prefix": way.prefix}}

    async def _played(self, transport: Json, prefix: str | None = None) -> Json:
        """The transcript. The gateway's prefix is put on what goes in, and taken off what comes out."""
        steps = [exposed(step, prefix) if prefix else step for step in self.script.steps(self.stage.folder / "files")]
        script = {"transport": transport, "answers": ANSWERS, "steps": steps}
        text = await self.stage.clients.play(self.client, script, within=PATIENCE)
        if prefix:
            text = text.replace(f"{prefix}__", "").replace(f"{prefix}+", "").replace(f"ui://{prefix}/", "ui://")
        found: Json = json.loads(text)
        return found


def exposed(step: Json, prefix: str) -> Json:
    """The step with the names that the aggregate shows."""
    match step:
        case {"params": {"ref": {"name": name}}}:
            return with_params(step, ref={**step["params"]["ref"], "name": f"{prefix}__{name}"})
        case {"params": {"ref": {"uri": uri}}}:
            return with_params(step, ref={**step["params"]["ref"], "uri": exposed_uri(uri, prefix)})
        case {"params": {"name": name}}:
            return with_params(step, name=f"{prefix}__{name}")
        case {"params": {"uri": uri}}:
            return with_params(step, uri=exposed_uri(uri, prefix))
        case _:
            return step


def with_params(step: Json, **params: object) -> Json:
    return {**step, "params": {**step["params"], **params}}


def exposed_uri(uri: str, prefix: str) -> str:
    return uri.replace("ui://", f"ui://{prefix}/") if uri.startswith("ui://") else f"{prefix}+{uri}"


def assert_equal(direct: Json, through: Json, server: str) -> None:
    for number, (expected, met) in enumerate(zip(direct["steps"], through["steps"], strict=True)):
        assert met == expected, f"step {number}, {expected['do']}"
    assert questions(through) == questions(direct)
    if server == "odd":
        assert notifications(through) == notifications(direct)
    assert announced(direct) <= announced(through)


def questions(transcript: Json) -> list[str]:
    """What was asked, but for roots: servers ask for them at any time, and the gateway answers outside of calls."""
    return in_any_order([question for question in transcript["questions"] if question["method"] != "roots/list"])


def notifications(transcript: Json) -> list[str]:
    """What was told, but for changed lists: where the gateway still gets to know its upstream, its lists change."""
    return in_any_order([one for one in transcript["notifications"] if not one["method"].endswith("/list_changed")])


def in_any_order(messages: list[Json]) -> list[str]:
    return sorted(json.dumps(message, sort_keys=True) for message in messages)


def announced(transcript: Json) -> set[str]:
    """Capabilities that the gateway must announce for a server that has them."""
    return set(transcript["server"]["capabilities"]) & {"tools", "resources", "prompts", "logging", "completions"}


@asynccontextmanager
async def odd_pair(folder: Path) -> AsyncIterator[tuple[Any, Any]]:
    """A raw client of the odd server, and one of the gateway in front of it."""
    judges = [Judge(unjudged={"tools/call"}) for _ in range(2)]
    command, *arguments = ODD_SERVER
    async with (
        gateway(folder, configuration({"odd": {"command": command, "args": arguments}})) as running,
        over_stdio(ODD_SERVER, answers=ANSWERS, judge=judges[0]) as direct,
        over_http(running.server("odd"), answers=ANSWERS, judge=judges[1]) as through,
    ):
        with anyio.fail_after(GUARD):
            yield direct, through


async def test_r32_what_no_schema_knows_comes_through_as_it_was(tmp_path: Path) -> None:
    async with odd_pair(tmp_path) as (direct, through):
        expected, met = await direct.initialize(), await through.initialize()
        assert met["instructions"] == expected["instructions"]
        for tool in ("echo", "links", "refuse", "need_url"):
            arguments = {"text": "\u2028 \U0001f600", "n": 12345678901234567890, "f": 1e-9, "none": None}
            expected, met = await direct.call(tool, arguments), await through.call(tool, arguments)
            assert {**met, "id": 0} == {**expected, "id": 0}, tool


async def test_r16_an_answer_of_many_mib_comes_through(tmp_path: Path) -> None:
    async with odd_pair(tmp_path) as (_, through):
        await through.initialize()
        answer = await through.call("large", {"length": 5_000_000})
        assert answer["result"]["content"][0]["text"] == "é" * 5_000_000


async def test_r31_every_page_is_fetched_whatever_its_cursor(tmp_path: Path) -> None:
    async with odd_pair(tmp_path) as (_, through):
        await through.initialize()
        listed = await through.result("resources/templates/list")
        assert [entry["name"] for entry in listed["resourceTemplates"]] == [f"template {n}" for n in range(5)]


async def test_r27_ui_resources_of_tools_can_be_read(tmp_path: Path) -> None:
    async with odd_pair(tmp_path) as (_, through):
        await through.initialize()
        tools = (await through.result("tools/list"))["tools"]
        uri = next(tool["_meta"]["ui"]["resourceUri"] for tool in tools if tool["name"] == "links")
        assert (await through.result("resources/read", {"uri": uri}))["contents"][0]["uri"] == uri
