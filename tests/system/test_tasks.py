"""Tasks through the gateway: real servers and clients of both kinds, every message judged by the official types."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import aiohttp
import anyio
import pytest

from tests.downstream.client import EventReader
from tests.downstream.modern import PREFIX, JudgedEvents, headers_of, request
from tests.fakes.clients.raw import RawClient, over_http
from tests.judge import Judge
from tests.system.running import (
    PYTHON,
    ROOT,
    SDK1,
    Gateway,
    Json,
    configuration,
    gateway,
    need_npm,
    npm_server,
    run,
    web_server,
)
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

SERVERS = ROOT / "tests" / "fakes" / "servers"
CAPABILITIES: Json = {"elicitation": {"form": {}}}
ACCEPTED: Json = {"elicitation/create": {"action": "accept", "content": {"name": "Ada"}}}
EXTENSION = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
GREETING = [
    {"type": "text", "text": "hello Ada"},
    {"type": "resource_link", "uri": "up+file:///greeting", "name": "greeting"},
]


@asynccontextmanager
async def upstream(transport: str) -> AsyncIterator[Json]:
    """The server of the first generation of the Python SDK, as the configuration names it."""
    script = str(SERVERS / "tasks1.py")
    if transport == "stdio":
        yield {"command": str(SDK1), "args": [script]}
        return
    async with web_server(str(SDK1), script) as url:
        yield {"url": url + "/"}


@asynccontextmanager
async def session(url: str, version: str = "2025-11-25") -> AsyncIterator[RawClient]:
    async with over_http(url, answers=ACCEPTED) as client:
        with anyio.fail_after(GUARD):
            await client.initialize(version, CAPABILITIES)
            yield client


async def as_task(client: RawClient, tool: str, **arguments: object) -> str:
    """The id of the task that a call became."""
    params = {"name": tool, "arguments": arguments, "task": {"ttl": 60_000}}
    task: Json = (await client.result("tools/call", params))["task"]
    return str(task["taskId"])


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_task_is_made_asks_its_client_and_gives_its_result(transport: str, tmp_path: Path) -> None:
    async with upstream(transport) as up, gateway(tmp_path, configuration({"up": up})) as running:
        url = f"{running.url}/mcp"
        async with session(url) as client, session(url) as other:
            tools = {tool["name"]: tool["execution"] for tool in (await client.result("tools/list"))["tools"]}
            assert tools["up__greet"] == {"taskSupport": "required"}
            id, theirs = await as_task(client, "up__greet"), await as_task(other, "up__wait")
            result = await client.result("tasks/result", {"taskId": id})
            assert result["content"] == GREETING
            assert result["_meta"] == {RELATED: {"taskId": id}}
            [question] = client.all_of("elicitation/create")
            assert question["_meta"] == {RELATED: {"taskId": id}}
            assert (await client.result("tasks/get", {"taskId": id}))["status"] == "completed"
            assert {status["taskId"] for status in client.all_of("notifications/tasks/status")} <= {id}
            assert [task["taskId"] for task in (await client.result("tasks/list"))["tasks"]] == [id]
            assert [task["taskId"] for task in (await other.result("tasks/list"))["tasks"]] == [theirs]
            assert (await other.result("tasks/cancel", {"taskId": theirs}))["status"] == "cancelled"
            assert not other.all_of("elicitation/create")
            assert (await client.request("tasks/get", {"taskId": "made-up"}))["error"]["code"] == -32602


async def test_the_sdks_own_client_works_with_tasks_as_if_nothing_stood_between(tmp_path: Path) -> None:
    program = [str(SDK1), "-m", "tests.fakes.clients.tasks1"]
    async with upstream("http") as up:
        direct = json.loads(await run([*program, up["url"], "greet"], within=GUARD))
    # With the first session that ends a server of this SDK can carry out no task any more.
    async with upstream("http") as up, gateway(tmp_path, configuration({"up": up})) as running:
        through = json.loads(await run([*program, running.server("up"), "greet"], within=GUARD))
    for told in (direct, through):
        id = told["created"]["taskId"]
        assert told["listed"] == [id]
        assert told["at last"]["taskId"] == id
        assert told["questions"][0]["_meta"] == told["result"]["_meta"] == {RELATED: {"taskId": id}}
    assert _timeless(through) == _timeless(direct)


def _timeless(told: Json) -> Json:
    """What does not differ from one task to the next."""
    text = json.dumps({key: told[key] for key in ("created", "result", "questions", "at last")})
    kept: Json = json.loads(text.replace(told["created"]["taskId"], "ID"))
    for task in (kept["created"], kept["at last"]):
        del task["createdAt"], task["lastUpdatedAt"]
    return kept


async def test_a_tool_that_must_be_a_task_serves_clients_that_have_none(tmp_path: Path) -> None:
    async with (
        upstream("stdio") as up,
        gateway(tmp_path, configuration({"up": up})) as running,
        session(f"{running.url}/mcp", "2025-06-18") as client,
    ):
        listed = {tool["name"]: tool for tool in (await client.result("tools/list"))["tools"]}
        assert "execution" not in listed["up__greet"]
        assert (await client.call("up__greet"))["result"]["content"] == GREETING
        assert len(client.all_of("elicitation/create")) == 1


async def test_the_task_of_the_servers_of_the_project_asks_and_reports(tmp_path: Path) -> None:
    need_npm()
    command, *arguments = npm_server("everything")
    settings = configuration({"up": {"command": command, "args": arguments}})
    async with gateway(tmp_path, settings) as running, session(f"{running.url}/mcp") as client:
        id = await as_task(client, "up__simulate-research-query", topic="python", ambiguous=True)
        result = await client.result("tasks/result", {"taskId": id})
        assert result["_meta"][RELATED] == {"taskId": id}
        assert client.all_of("elicitation/create")[0]["_meta"][RELATED] == {"taskId": id}
        assert [task["taskId"] for task in (await client.result("tasks/list"))["tasks"]] == [id]
        assert {status["taskId"] for status in client.all_of("notifications/tasks/status")} <= {id}


@dataclass
class StatelessClient:
    """Speaks 2026-07-28; has tasks where it is `extended`."""

    http: aiohttp.ClientSession
    url: str
    extended: bool = True
    _ids: count[int] = field(default_factory=lambda: count(1))

    async def request(self, method: str, **params: object) -> Json:
        """The whole answer."""
        async with self._sent(method, params) as (response, judge):
            answer: Json = await response.json()
            judge.received(answer)
            return answer

    @asynccontextmanager
    async def listening(self, *ids: str) -> AsyncIterator[JudgedEvents]:
        async with self._sent("subscriptions/listen", {"notifications": {"taskIds": ids}}) as (response, judge):
            yield JudgedEvents(EventReader(response), judge)

    @asynccontextmanager
    async def _sent(
        self, method: str, params: Mapping[str, object]
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, Judge]]:
        declared: Json = {**CAPABILITIES, **({"extensions": {EXTENSION: {}}} if self.extended else {})}
        message = request(next(self._ids), method, dict(params), {f"{PREFIX}/clientCapabilities": declared})
        headers = {"Accept": "application/json, text/event-stream", **headers_of(message)}
        if "taskId" in params:
            headers["Mcp-Name"] = str(params["taskId"])
        judge = Judge(unjudged=("tasks/update", "tasks/cancel"))
        judge.sent(message)
        async with self.http.post(self.url, json=message, headers=headers) as response:
            yield response, judge

    async def result(self, method: str, **params: object) -> Json:
        answer = await self.request(method, **params)
        assert "result" in answer, answer
        result: Json = answer["result"]
        return result


@asynccontextmanager
async def of_the_extension(folder: Path) -> AsyncIterator[Gateway]:
    """A gateway in front of a server of the extension."""
    async with web_server(PYTHON, "-W", "ignore", str(SERVERS / "tasks2.py")) as url:
        with anyio.fail_after(GUARD):
            async with gateway(folder, configuration({"up": {"url": url, "era": "modern"}})) as running:
                yield running


async def test_a_task_of_the_extension_is_made_asks_and_is_answered(tmp_path: Path) -> None:
    async with of_the_extension(tmp_path) as running, aiohttp.ClientSession() as http:
        client = StatelessClient(http, f"{running.url}/mcp")
        assert (await client.result("server/discover"))["capabilities"]["extensions"] == {EXTENSION: {}}
        made = await client.result("tools/call", name="up__greet", arguments={})
        id = made["taskId"]
        assert made["resultType"] == "task"
        asked = await client.result("tasks/get", taskId=id)
        assert (asked["taskId"], asked["status"]) == (id, "input_required")
        answers = {"name": {"action": "accept", "content": {"name": "Ada"}}}
        await client.result("tasks/update", taskId=id, inputResponses=answers)
        done = await client.result("tasks/get", taskId=id)
        assert (done["status"], done["result"]["content"]) == ("completed", GREETING)
        await client.result("tasks/cancel", taskId=id)
        assert (await client.result("tasks/get", taskId=id))["status"] == "cancelled"


async def test_a_client_that_listens_hears_of_its_tasks_and_of_no_others(tmp_path: Path) -> None:
    async with of_the_extension(tmp_path) as running, aiohttp.ClientSession() as http:
        client = StatelessClient(http, f"{running.url}/mcp")
        mine, other = [(await client.result("tools/call", name="up__greet"))["taskId"] for _ in range(2)]
        async with client.listening(mine, "task-1") as first, client.listening(other) as second:
            assert (await first.message())["params"]["notifications"] == {"taskIds": [mine]}
            assert (await second.message())["params"]["notifications"] == {"taskIds": [other]}
            answers = {"name": {"action": "accept", "content": {"name": "Ada"}}}
            await client.result("tasks/update", taskId=mine, inputResponses=answers)
            await client.result("tasks/cancel", taskId=other)
            done, cancelled = (await first.message())["params"], (await second.message())["params"]
        assert (done["taskId"], done["status"], done["result"]["content"]) == (mine, "completed", GREETING)
        assert (cancelled["taskId"], cancelled["status"]) == (other, "cancelled")


async def test_the_extension_is_for_those_who_declare_it(tmp_path: Path) -> None:
    async with of_the_extension(tmp_path) as running, aiohttp.ClientSession() as http:
        extended = StatelessClient(http, f"{running.url}/mcp")
        plain = StatelessClient(http, f"{running.url}/mcp", extended=False)
        id = (await extended.result("tools/call", name="up__greet", arguments={}))["taskId"]
        refused = (await plain.request("tasks/get", taskId=id))["error"]
        assert refused["code"] == -32021
        assert refused["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        assert (await extended.request("tasks/get", taskId="task-1"))["error"]["code"] == -32602
        assert "error" in await plain.request("tools/call", name="up__greet", arguments={})


async def test_the_extensions_tasks_are_not_shown_to_clients_of_old(tmp_path: Path) -> None:
    async with of_the_extension(tmp_path) as running, over_http(f"{running.url}/mcp") as client:
        offered = (await client.initialize(capabilities={"extensions": {EXTENSION: {}}}))["capabilities"]
        assert "extensions" not in offered
        assert "tasks" not in offered
        assert "error" in await client.call("up__greet")
