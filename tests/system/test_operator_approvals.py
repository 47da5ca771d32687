"""Calls that an operator has to approve, from the official SDKs' clients of both generations and languages.

A service at the webhook decides at once, or later by the link that it was given; each run of the tool is a line in a
file, so that nothing can run twice, or without approval, unseen.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import pytest
from aiohttp import web
from anyio.abc import TaskGroup
from mcp import Client, MCPError
from mcp_types import CallToolResult, InputRequiredResult

from tests.fakes.webhooks import SECRET, WebhookService, decides, webhook_service
from tests.ports import free_port
from tests.system.running import PYTHON, Clients, Gateway, Json, configuration, gateway, need_npm, write
from tests.system.scripts import call
from tests.system.test_large_results import PLAYERS
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

ERAS: Final = ("legacy", "modern")
HOLD: Final = 3.0
"""Seconds that a request of a stateless client waits for an operator; the SDKs send ten of them."""
WAYS: Final = ("allow", "deny", "later", "twice", "both")
"""The ways of a call, which its argument says: decided by the webhook's answer, later by its link, by several at once
who agree, or by two who do not."""


@dataclass
class Operators:
    """The operators' service: decides by the last word of the call's text, and remembers the links of the calls."""

    tasks: TaskGroup
    http: aiohttp.ClientSession
    links: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    """What decisions by a link were answered, by the call's text."""

    async def answer(self, told: Json) -> web.StreamResponse:
        text = told["arguments"]["text"]
        self.links[text] = told["link"]
        way = text.split()[-1]
        if way in {"allow", "deny"}:
            return await decides(way)
        decisions = {"later": ["allow"], "twice": ["allow"] * 5, "both": ["allow", "deny"] * 3}.get(way, [])
        for decision in decisions:
            self.tasks.start_soon(self.decide, text, decision)
        return web.Response(status=202)

    async def decide(self, text: str, decision: str) -> int:
        async with self.http.post(self.links[text], json={"decision": decision}) as response:
            self.statuses.setdefault(text, []).append(response.status)
            return response.status


@dataclass
class World:
    """A gateway in front of one server of each era, and the operators' service beside it."""

    gateway: Gateway
    operators: Operators
    service: WebhookService
    settings: Json
    folder: Path

    @property
    def url(self) -> str:
        return f"{self.gateway.url}/mcp"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.settings['admin']['port']}"

    def runs(self, text: str) -> int:
        """How often the tool ran for a text."""
        notes = self.folder / "notes"
        return notes.read_text().splitlines().count(text) if notes.exists() else 0

    async def audited(self, text: str) -> list[str]:
        """The outcomes of the requests with a text, in the order in which they ended, once there is a last one."""
        found: list[str] = []

        async def is_over() -> bool:
            found[:] = [line["outcome"] for line in self._lines() if _text_of(line) == text]
            return found != [] and found[-1] != "input_required"

        await self.until(is_over)
        return found

    async def is_decided(self, subject: str, decider: str) -> None:
        """Returns once the audit has who decided on a call of a tool."""

        async def is_there() -> bool:
            decided = [line for line in self._lines() if "event" in line and line["subject"] == subject]
            return decider in [f"{line['principal']}: {line['event']}" for line in decided]

        await self.until(is_there)

    def _lines(self) -> list[Json]:
        return [json.loads(line) for line in (self.folder / "audit.jsonl").read_text().splitlines()]

    async def counted(self, outcome: str) -> int:
        """`mcproxy_approvals_total` of operators, by outcome."""
        async with self.operators.http.get(f"{self.admin}/metrics") as response:
            lines = (await response.text()).splitlines()
        wanted = f'mcproxy_approvals_total{{approver="operator",outcome="{outcome}"}} '
        return next((int(float(line.removeprefix(wanted))) for line in lines if line.startswith(wanted)), 0)

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        with anyio.fail_after(GUARD):
            while not await holds():  # noqa: ASYNC110  # it is another process that it waits for
                await anyio.sleep(0.02)

    async def waits(self, text: str) -> None:
        """Returns once a call waits, and the service has its link."""

        async def is_told() -> bool:
            return text in self.operators.links

        await self.until(is_told)

    async def parked(self) -> None:
        """Returns once some stateless client was told to retry."""

        async def is_parked() -> bool:
            async with self.operators.http.get(f"{self.admin}/metrics") as response:
                return "\nmcproxy_parked_calls 0.0\n" not in await response.text()

        await self.until(is_parked)


def _text_of(line: Json) -> object:
    return (line.get("arguments") or {}).get("text")


def recorder(folder: Path, era: str) -> Json:
    return {
        "command": PYTHON,
        "args": ["-W", "ignore", "-m", "tests.fakes.servers.recorder", str(folder / "notes")],
        "era": era,
    }


@asynccontextmanager
async def world(folder: Path, hold: float = HOLD, **approvals: object) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        tasks = await stack.enter_async_context(anyio.create_task_group())
        operators = Operators(tasks, http)
        service = await stack.enter_async_context(webhook_service(operators.answer))
        settings = configuration({era: recorder(folder, era) for era in ERAS}, bridge={"hold": hold}, watch=False)
        settings["admin"] = {"port": free_port()}
        settings["access"] = {
            "policy": {"roles": {"everyone": {"allow": [{"tools": ["note"], "approve": "operator"}, {}]}}},
            "approvals": {"webhook": {"url": service.url, "secret": SECRET, "timeout": GUARD}, **approvals},
            "audit": {"file": str(folder / "audit.jsonl"), "arguments": "redacted"},
        }
        running = await stack.enter_async_context(gateway(folder, settings))
        yield World(running, operators, service, settings, folder)
        assert service.unsigned == 0
        tasks.cancel_scope.cancel()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def house(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with world(tmp_path_factory.mktemp("approvals")) as made:
        yield made


@pytest.fixture(scope="module")
async def clients(anyio_backend: str) -> AsyncIterator[Clients]:
    made = Clients()
    yield made
    await made.aclose()


async def play(house: World, clients: Clients, sdk: str, mode: str, texts: dict[str, str]) -> Json:
    """What each call of a player came to, by its text; `texts` has the server of each."""
    script = {
        "transport": {"kind": "http", "url": house.url},
        "mode": mode,
        "answers": {},
        "steps": [call(f"{era}__note", text=text) for text, era in texts.items()],
    }
    transcript = json.loads(await clients.play(sdk, script, within=GUARD))
    assert transcript["questions"] == []
    return dict(zip(texts, transcript["steps"], strict=True))


def is_refused(step: Json, why: str) -> bool:
    return why in step.get("error", {}).get("message", "")


@pytest.mark.parametrize(("sdk", "mode"), PLAYERS)
async def test_r82_each_client_gets_what_an_operator_decides_and_the_tool_runs_once_or_not_at_all(
    house: World, clients: Clients, sdk: str, mode: str
) -> None:
    need_npm()
    texts = {f"{sdk} {mode} {era} {way}": era for era in ERAS for way in WAYS}
    steps = await play(house, clients, sdk, mode, texts)
    for text, step in steps.items():
        way, runs = text.split()[-1], house.runs(text)
        noted = step.get("result", {}).get("content") == [{"type": "text", "text": f"noted {text}"}]
        denied = is_refused(step, "this call was not approved: a person denied it")
        assert (noted, denied) == (runs == 1, runs == 0), step
        assert noted or step["error"]["data"] == {"approval": "denied"}
        assert way == "both" or runs == (way != "deny")
        last = (await house.audited(text))[-1]
        assert last == ("ok" if noted else "approval_denied")
        decided = house.operators.statuses.get(text, [200])
        assert decided.count(200) <= 1, "one decision counts"
    await house.is_decided("modern/note", "the webhook: operator approve")
    await house.is_decided("legacy/note", "the link of the webhook: operator approve")


async def test_a_stateless_client_is_told_to_retry_and_a_handshake_client_waits(house: World) -> None:
    for mode in ("auto", "legacy"):
        text = f"waiting {mode}"
        async with Client(house.url, mode=mode) as client, anyio.create_task_group() as tasks:
            outcomes: list[Any] = []

            async def make(client: Client = client, text: str = text, outcomes: list[Any] = outcomes) -> None:
                outcomes.append(await client.call_tool("modern__note", {"text": text}))

            tasks.start_soon(make)
            await house.waits(text)
            if mode == "auto":
                await house.parked()
            assert await house.operators.decide(text, "allow") == 200
        assert house.runs(text) == 1
        *held, last = await house.audited(text)
        assert (set(held), last) == ({"input_required"} if mode == "auto" else set(), "ok")


async def held(client: Client, text: str, **more: Any) -> str:
    """The state that a stateless client is given for a call that still waits."""
    result = await client.session.call_tool("legacy__note", {"text": text}, allow_input_required=True, **more)
    assert isinstance(result, InputRequiredResult)
    assert not result.input_requests
    assert result.request_state is not None
    return result.request_state


async def retried(client: Client, text: str, state: str) -> CallToolResult | InputRequiredResult:
    return await client.session.call_tool(
        "legacy__note", {"text": text}, request_state=state, allow_input_required=True
    )


async def test_r82_a_state_is_good_for_its_own_arguments_and_for_one_retry(house: World) -> None:
    text = "by hand"
    async with Client(house.url, mode="auto") as client:
        state = await held(client, text)
        await house.waits(text)
        assert await house.operators.decide(text, "allow") == 200
        with pytest.raises(MCPError, match="was given for another request"):
            await retried(client, "changed", state)
        assert (house.runs(text), house.runs("changed")) == (0, 0), "its client has not asked for it again yet"
        outcomes: list[object] = []

        async def once() -> None:
            try:
                outcomes.append(await retried(client, text, state))
            except MCPError as refusal:
                outcomes.append(str(refusal))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(once)
        assert [type(outcome) for outcome in outcomes].count(CallToolResult) == 1
        assert sum("was used before" in outcome for outcome in outcomes if isinstance(outcome, str)) == 4
        with pytest.raises(MCPError, match="was used before"):
            await retried(client, text, state)
    assert (house.runs(text), house.runs("changed")) == (1, 0)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_caller_that_hangs_up_withdraws_its_call_and_nobody_can_approve_it_any_more(
    house: World, mode: str
) -> None:
    text, before = f"given up {mode}", await house.counted("withdrawn")
    async with Client(house.url, mode=mode) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.call_tool, "legacy__note", {"text": text})
        await house.waits(text)
        tasks.cancel_scope.cancel()

    async def is_counted() -> bool:
        return await house.counted("withdrawn") == before + 1

    await house.until(is_counted)
    assert await house.operators.decide(text, "allow") == 410
    assert house.runs(text) == 0


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_operator_decides_on_the_status_page(house: World, mode: str) -> None:
    for decision, runs in (("allow", 1), ("deny", 0)):
        text = f"on the page {mode} {decision}ed"
        async with Client(house.url, mode=mode) as client, anyio.create_task_group() as tasks:
            outcomes: list[Any] = []

            async def make(client: Client = client, text: str = text, outcomes: list[Any] = outcomes) -> None:
                try:
                    outcomes.append(await client.call_tool("modern__note", {"text": text}))
                except MCPError as refusal:
                    outcomes.append(str(refusal))

            tasks.start_soon(make)
            await house.waits(text)
            assert await decide_on_the_page(house, decision) == (200, True)
        assert house.runs(text) == runs
        assert ("denied" in str(outcomes[0])) == (decision == "deny")
    await house.is_decided("modern/note", "anonymous: operator deny")


async def decide_on_the_page(house: World, decision: str) -> tuple[int, bool]:
    """Sends the page's form for the one call that waits, as a browser would."""
    page = f"{house.admin}/ui/approvals"
    async with house.operators.http.get(page) as response:
        text = await response.text()
    fields = {name: text.partition(f'name="{name}" value="')[2].partition('"')[0] for name in ("token", "id")}
    async with house.operators.http.post(page, data={**fields, "decision": decision}) as response:
        return response.status, "Decided." in await response.text()


@pytest.mark.parametrize(("sdk", "mode"), PLAYERS)
async def test_r82_what_nobody_decides_in_time_expires_for_each_client(
    expiring: World, clients: Clients, sdk: str, mode: str
) -> None:
    need_npm()
    texts = {f"{sdk} {mode} {era} silence": era for era in ERAS}
    for text, step in (await play(expiring, clients, sdk, mode, texts)).items():
        assert is_refused(step, "this call was not approved: nobody answered in time"), step
        assert step["error"]["data"] == {"approval": "expired"}
        assert expiring.runs(text) == 0
        assert (await expiring.audited(text))[-1] == "approval_expired"
        assert await expiring.operators.decide(text, "allow") == 410
        assert expiring.runs(text) == 0


@pytest.fixture(scope="module")
async def expiring(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A gateway in which calls wait for so short a time that nobody can decide."""
    async with world(tmp_path_factory.mktemp("expiring"), hold=0.2, timeout=0.6) as made:
        yield made


async def test_r82_an_approval_that_was_given_under_another_policy_is_void_in_both_eras(tmp_path: Path) -> None:
    async with (
        world(tmp_path) as house,
        Client(house.url, mode="auto") as modern,
        Client(house.url, mode="legacy") as old,
    ):
        state = await held(modern, "modern reloaded")
        await house.waits("modern reloaded")
        refusals: list[str] = []

        async def make() -> None:
            with pytest.raises(MCPError) as refused:
                await old.call_tool("legacy__note", {"text": "old reloaded"})
            refusals.append(str(refused.value))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(make)
            await house.waits("old reloaded")
            house.settings["access"]["approvals"]["max_waiting"] = 17
            write(tmp_path, house.settings)
            house.gateway.process.send_signal(signal.SIGHUP)
            with anyio.fail_after(GUARD):
                await house.gateway.log.says(lambda entry: entry.get("event") == "configuration reloaded")
            for text in ("modern reloaded", "old reloaded"):
                assert await house.operators.decide(text, "allow") == 410, "it is void"
        with pytest.raises(MCPError) as refused:
            await retried(modern, "modern reloaded", state)
        refusals.append(str(refused.value))
        for refusal in refusals:
            assert "the configuration, the server or the tool changed before it was sent" in refusal
        for text in ("modern reloaded", "old reloaded"):
            assert house.runs(text) == 0
            assert (await house.audited(text))[-1] == "approval_withdrawn"
        assert await house.counted("withdrawn") == 2
