"""Two clients at once, with the same ids, tokens and names: neither ever learns of the other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.fakes.clients.raw import RawClient, over_http
from tests.ports import free_port
from tests.system.running import ODD_SERVER, Gateway, Json, configuration, gateway, need_npm, npm_server
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

COMMAND, *ARGUMENTS = ODD_SERVER
ODD: Json = {"command": COMMAND, "args": ARGUMENTS}
NAMES = ("Ada", "Bob")
QUESTIONS = ("sampling/createMessage", "elicitation/create")


def answers_of(name: str) -> dict[str, Json]:
    return {
        "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": name}, "model": "m"},
        "elicitation/create": {"action": "accept", "content": {"name": name}},
        "roots/list": {"roots": [{"uri": f"file:///{name}"}]},
    }


@asynccontextmanager
async def two_clients(running: Gateway) -> AsyncIterator[tuple[RawClient, RawClient]]:
    """Two initialised clients, each of which answers with its own name. Their ids are the same throughout."""
    url = running.server("odd")
    with anyio.fail_after(GUARD):
        async with over_http(url, answers=answers_of("Ada")) as ada, over_http(url, answers=answers_of("Bob")) as bob:
            await ada.initialize()
            await bob.initialize()
            yield ada, bob


@asynccontextmanager
async def at_the_odd_server(folder: Path, **more: object) -> AsyncIterator[tuple[RawClient, RawClient]]:
    async with gateway(folder, configuration({"odd": {**ODD, **more}})) as running, two_clients(running) as clients:
        yield clients


async def both(ada: RawClient, bob: RawClient, tool: str, **arguments: object) -> list[Json]:
    """What the tool says to each, called by both at once with the same id and the same progress token."""
    answers: dict[str, Json] = {}

    async def call(client: RawClient, who: str) -> None:
        params = {"name": tool, "arguments": {"who": who, **arguments}, "_meta": {"progressToken": 7}}
        answers[who] = await client.request("tools/call", params, id=1000)

    async with anyio.create_task_group() as tasks:
        for client, who in zip((ada, bob), NAMES, strict=True):
            tasks.start_soon(call, client, who)
    return [answers[who] for who in NAMES]


def said(answer: Json) -> Json:
    """The JSON that a tool of the odd server put into its text."""
    found: Json = json.loads(answer["result"]["content"][0]["text"])
    return found


async def test_r24_the_same_ids_and_tokens_at_once_are_kept_apart(tmp_path: Path) -> None:
    async with at_the_odd_server(tmp_path) as clients:
        answers = await both(*clients, "meet")
        for client, answer, who in zip(clients, answers, NAMES, strict=True):
            assert answer["id"] == 1000
            assert said(answer)["who"] == who
            reports = client.all_of("notifications/progress")
            assert [(report["message"], report["progressToken"]) for report in reports] == [(who, 7), (who, 7)]


@pytest.mark.parametrize("question", ["sample", "form"])
async def test_r26_a_question_that_may_be_anybodys_is_refused(tmp_path: Path, question: str) -> None:
    async with at_the_odd_server(tmp_path) as clients:
        answers = await both(*clients, "meet", ask=question)
        for client, answer, who in zip(clients, answers, NAMES, strict=True):
            assert said(answer)["who"] == who
            assert "connection: session" in said(answer)["answer"]["error"]["message"]
            assert not any(client.all_of(method) for method in QUESTIONS)


@pytest.mark.parametrize("question", ["sample", "form", "roots"])
async def test_r26_a_question_goes_to_the_only_caller_and_never_to_a_bystander(tmp_path: Path, question: str) -> None:
    async with at_the_odd_server(tmp_path) as (ada, bob):
        answer = said(await bob.call(question))
        assert "Bob" in json.dumps(answer["result"])
        await ada.result("ping")
        assert ada.heard == []


@pytest.mark.parametrize("question", ["sample", "form", "roots"])
async def test_r14_clients_with_connections_of_their_own_are_asked_at_once(tmp_path: Path, question: str) -> None:
    async with at_the_odd_server(tmp_path, connection="session") as clients:
        answers = await both(*clients, question)
        for answer, who in zip(answers, NAMES, strict=True):
            assert who in json.dumps(said(answer)["result"])


async def test_r20_an_update_reaches_the_subscriber_alone(tmp_path: Path) -> None:
    async with at_the_odd_server(tmp_path) as (ada, bob):
        await ada.result("resources/subscribe", {"uri": "odd:memo"})
        await bob.call("touch", {"uri": "odd:memo"})
        assert (await ada.hears("notifications/resources/updated"))[0]["uri"] == "odd:memo"
        await bob.result("ping")
        assert bob.heard == []


async def test_log_messages_of_a_call_are_its_callers(tmp_path: Path) -> None:
    async with at_the_odd_server(tmp_path) as (ada, bob):
        await bob.call("log")
        assert len(await bob.hears("notifications/message", 3)) == 3
        await ada.result("ping")
        assert ada.heard == []


async def test_r25_cancelling_one_call_leaves_the_other_with_the_same_id_alone(tmp_path: Path) -> None:
    async with at_the_odd_server(tmp_path) as (ada, bob), anyio.create_task_group() as tasks:
        params = {"name": "wait", "_meta": {"progressToken": 7}}
        tasks.start_soon(lambda: ada.request("tools/call", params, id=1000))
        tasks.start_soon(lambda: bob.request("tools/call", params, id=1000))
        await ada.hears("notifications/progress")
        await bob.hears("notifications/progress")
        await ada.notify("notifications/cancelled", {"requestId": 1000})
        assert (await bob.call("given_up"))["result"]["content"][0]["text"] == "given_up: 1 of 2"
        tasks.cancel_scope.cancel()


async def test_r26_over_http_each_of_two_callers_is_asked_on_its_own_stream(tmp_path: Path) -> None:
    need_npm()
    port = free_port()
    command, *arguments = npm_server("everything", "streamableHttp")
    async with (
        child(tmp_path, command, *arguments, PORT=str(port)),
        gateway(tmp_path, configuration({"odd": {"url": f"http://127.0.0.1:{port}/mcp"}})) as running,
        two_clients(running) as clients,
    ):
        answers = await both(*clients, "trigger-elicitation-request")
        for answer, who in zip(answers, NAMES, strict=True):
            text = json.dumps(answer["result"])
            assert who in text
            assert not any(other in text for other in NAMES if other != who)


@asynccontextmanager
async def child(folder: Path, *command: str, **environment: str) -> AsyncIterator[None]:
    """A server that the gateway only meets over the network."""
    process = await anyio.open_process(
        command, env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment}, cwd=folder, stdout=None, stderr=None
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()
