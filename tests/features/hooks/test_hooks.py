"""Hooks, through all of the gateway and in front of a real service on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web

from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.clients import TaskChanged
from mcproxy.call.errors import Reason
from mcproxy.call.identity import Caller, Principal
from mcproxy.call.upstreams import LoginAwaited
from mcproxy.features.approvals.feature import CallApprovals
from mcproxy.features.hooks.feature import CallHooks
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import first_level, raw
from mcproxy.protocol.methods import Kind, row_of
from tests.fakes.upstream import (
    FakeClient,
    FakeUpstream,
    House,
    complete,
    decoded,
    error,
    house,
    quiet,
    settings_of,
    tool,
)
from tests.gateway.tasks.test_relay import DECLARED, TOLD, core, create, described, extended, made
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

SECRET = "sixteen characters or more"
ALICE = Principal("alice")
ALLOWED = {"phase": "before", "mode": "enforce", "decision": "allow"}


@dataclass
class Service:
    """Answers as the test says, and remembers what it was told."""

    url: str = ""
    answer: Callable[[Any], object] = lambda told: {"decision": "allow"}
    told: list[Any] = field(default_factory=list)
    hold: anyio.Event | None = None
    """Set when it is to answer."""
    connections: Callable[[], int] = lambda: 0

    async def handle(self, request: web.Request) -> web.Response:
        self.told.append(await request.json())
        if self.hold is not None:
            await self.hold.wait()
        answer = self.answer(self.told[-1])
        return answer if isinstance(answer, web.Response) else web.json_response(answer)


@asynccontextmanager
async def service() -> AsyncIterator[Service]:
    it = Service()
    app = web.Application()
    app.router.add_post("/", it.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    it.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    assert runner.server is not None
    server = runner.server
    it.connections = lambda: len(server.connections)
    try:
        with anyio.fail_after(GUARD):
            yield it
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gateway(*hooks: dict[str, object], **access: object) -> AsyncIterator[House]:
    up = FakeUpstream("up")
    up.lists[Kind.TOOLS] = [tool("rm"), tool("ls")]
    up.answers["tools/call"] = lambda call: complete(content=[{"type": "text", "text": "secret"}], _meta={"k": 1})
    options = [{"secret": SECRET, "timeout": GUARD, **hook} for hook in hooks]
    async with house(up, access={**access, "hooks": options}) as h:
        await h.ready()
        await quiet()
        yield h


async def rm(h: House, version: str = LATEST, name: str = "up__rm", **arguments: object) -> Outcome:
    return await h.call(
        "tools/call", version=version, name=name, principal=ALICE, arguments={"path": "/a", **arguments}
    )


def sent(h: House) -> list[Any]:
    return [json.loads(bytes(call.params["arguments"])) for call in h["up"].calls if call.method == "tools/call"]


@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_a_hook_is_told_of_the_calls_that_it_selects_and_of_no_other(version: str) -> None:
    async with service() as it, gateway({"url": it.url, "tools": ["rm"]}) as h:
        await rm(h, version)
        await rm(h, version, name="up__ls")
        await h.call("tools/list", version=version)
        assert it.told == [
            {
                "type": "before", "method": "tools/call", "upstream": "up", "subject": "rm", "principal": "alice",
                "roles": [], "endpoint": "", "arguments": {"path": "/a"},
            }
        ]  # fmt: skip
        assert len(sent(h)) == 2


async def test_a_call_that_a_hook_denies_is_not_sent_and_its_caller_is_told_the_reason() -> None:
    async with service() as it, gateway({"url": it.url}) as h:
        it.answer = lambda told: {"decision": "deny", "reason": "not today"}
        refusal = error(await rm(h))
        assert refusal.message == "this call was denied by a check of the gateway: not today"
        assert sent(h) == []


async def test_a_call_that_a_hook_changed_is_judged_by_the_policy_again() -> None:
    rules = [{"tools": ["rm"], "arguments": {"path": {"matches": "/a.*"}}}]
    policy = {"roles": {"everyone": {"allow": rules}}}
    async with service() as it, gateway({"url": it.url}, policy=policy) as h:
        it.answer = lambda told: {"decision": "change", "body": {"arguments": {"path": "/a/safe"}}}
        await rm(h)
        it.answer = lambda told: {"decision": "change", "body": {"arguments": {"path": "/etc"}}}
        assert error(await rm(h)).message == "Unknown tool: up__rm"
        assert sent(h) == [{"path": "/a/safe"}]


async def test_a_call_that_the_policy_denies_is_told_to_no_hook() -> None:
    rules = [{"tools": ["rm"], "arguments": {"path": {"equals": "/b"}}}]
    async with service() as it, gateway({"url": it.url}, policy={"roles": {"everyone": {"allow": rules}}}) as h:
        assert error(await rm(h)).message == "Unknown tool: up__rm"
        assert error(await rm(h, name="up__ls")).message == "Unknown tool: up__ls"
        assert error(await rm(h, name="up__none")).message == "Unknown tool: up__none"
        assert it.told == []


async def test_a_hook_after_a_call_sees_its_result_and_may_change_or_withhold_it() -> None:
    async with service() as it, gateway({"url": it.url, "phase": "after"}) as h:
        it.answer = lambda told: {"decision": "change", "body": {"result": {"content": [], "_meta": {}, "x": 1}}}
        assert decoded(await rm(h)) == {"content": [], "_meta": {"k": 1}}
        assert it.told[0]["result"]["content"] == [{"type": "text", "text": "secret"}]
        it.answer = lambda told: {"decision": "deny"}
        assert error(await rm(h)).message == "this call was denied by a check of the gateway"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"error": "busy"},
        {"reason": "later"},
        {"decision": None},
        {"decision": "perhaps"},
        {"decision": "change"},
        {"decision": "change", "body": {}},
        {"decision": "change", "body": {"arguments": []}},
        [],
    ],
)
async def test_an_answer_that_makes_no_sense_is_a_failure(answer: object) -> None:
    async with service() as it, gateway({"url": it.url}) as h:
        it.answer = lambda told: answer
        assert "could not be made; try again later" in error(await rm(h)).message
        assert sent(h) == []


@pytest.mark.parametrize("status", [202, 204])
async def test_a_service_that_has_nothing_to_say_lets_a_call_go_on(status: int) -> None:
    async with service() as it, gateway({"url": it.url}) as h:
        it.answer = lambda told: web.Response(status=status)
        await rm(h)
        assert len(sent(h)) == 1
        assert h.metrics.registry.get_sample_value("mcproxy_hooks_total", ALLOWED) == 1


@pytest.mark.parametrize(("fail", "runs"), [("closed", 0), ("open", 1)])
async def test_a_service_that_is_away_stops_calls_or_does_not_as_the_settings_say(fail: str, runs: int) -> None:
    async with gateway({"url": "http://127.0.0.1:1/", "fail": fail}) as h:
        outcome = await rm(h)
        assert len(sent(h)) == runs
        if not runs:
            assert getattr(outcome, "reason", None) is Reason.UNAVAILABLE


@pytest.mark.parametrize("decision", ["deny", "change", "perhaps"])
async def test_in_audit_mode_an_answer_is_counted_and_does_nothing(decision: str) -> None:
    async with service() as it, gateway({"url": it.url, "mode": "audit"}) as h:
        it.answer = lambda told: {"decision": decision, "body": {"arguments": {"path": "/b"}}}
        await rm(h)
        assert sent(h) == [{"path": "/a"}]
        labels = {"phase": "before", "mode": "audit", "decision": "failed" if decision == "perhaps" else decision}
        assert h.metrics.registry.get_sample_value("mcproxy_hooks_total", labels) == 1


async def test_prompts_and_reads_can_be_selected_too() -> None:
    hook = {"on": ["prompts/get", "resources/read"], "prompts": ["ask"], "resources": ["file:///a*"]}
    async with service() as it, gateway({"url": it.url, **hook}) as h:
        up = h["up"]
        up.answers["prompts/get"] = lambda call: complete(messages=[])
        up.answers["resources/read"] = lambda call: complete(contents=[])
        up.list_changed(Kind.PROMPTS, [{"name": "ask"}])
        await quiet()
        await h.call("prompts/get", name="up__ask")
        await h.call("resources/read", uri="up+file:///a/b")
        await h.call("resources/read", uri="up+file:///b")
        await rm(h)
        assert [(told["method"], told["subject"]) for told in it.told] == [
            ("prompts/get", "ask"),
            ("resources/read", "file:///a/b"),
        ]


@pytest.mark.parametrize(
    "uri", ["y://private/x", "y://%70rivate/x", "Y://PRIVATE/x", "y:private/x", r"y:\\private\x", "y://private/a/../x"]
)
async def test_no_spelling_of_a_uri_leads_past_a_hook(uri: str) -> None:
    hook = {"on": ["resources/read"], "resources": ["y://private/*"]}
    async with service() as it, gateway({"url": it.url, **hook}) as h:
        h["up"].answers["resources/read"] = lambda call: complete(contents=[])
        it.answer = lambda told: {"decision": "deny"}
        assert "denied by a check" in error(await h.call("resources/read", uri=f"up+{uri}")).message
        assert h["up"].count("resources/read") == 0


@pytest.mark.parametrize("uri", ["y://private/%ff", "y://a/%0a"])
async def test_a_uri_whose_readings_cannot_be_told_leads_past_no_hook_though_its_upstream_lists_it(uri: str) -> None:
    hook = {"on": ["resources/read"], "resources": ["y://private/*"]}
    async with service() as it, gateway({"url": it.url, **hook}) as h:
        h["up"].list_changed(Kind.RESOURCES, [{"uri": uri, "name": "n"}])
        await quiet()
        assert await h.listed(Kind.RESOURCES) == [f"up+{uri}"]
        it.answer = lambda told: {"decision": "deny"}
        assert "denied by a check" in error(await h.call("resources/read", uri=f"up+{uri}")).message
        assert h["up"].count("resources/read") == 0


async def test_a_hook_on_several_methods_may_change_those_of_its_calls_that_have_arguments() -> None:
    on = ["tools/call", "prompts/get", "resources/read"]
    async with service() as it, gateway({"url": it.url, "on": on}) as h:
        h["up"].answers["prompts/get"] = lambda call: complete(messages=[])
        h["up"].answers["resources/read"] = lambda call: complete(contents=[])
        h["up"].list_changed(Kind.PROMPTS, [{"name": "ask"}])
        await quiet()
        it.answer = lambda told: {"decision": "change", "body": {"arguments": {"path": "/a/safe"}}}
        await rm(h)
        await h.call("prompts/get", name="up__ask", arguments={"path": "/b"})
        assert [decoded(call.params)["arguments"] for call in h["up"].calls if "arguments" in call.params] == [
            {"path": "/a/safe"},
            {"path": "/a/safe"},
        ]
        assert "could not be made" in error(await h.call("resources/read", uri="up+file:///b")).message
        assert h["up"].count("resources/read") == 0


# The result of a tool that comes from a task


@asynccontextmanager
async def tasks(up: FakeUpstream, **hook: object) -> AsyncIterator[House]:
    options = {"secret": SECRET, "timeout": GUARD, "phase": "after", **hook}
    async with house(up, access={"hooks": [options]}, sleep=anyio.sleep) as h:
        await h.ready()
        await quiet()
        yield h


def scanned(told: Any) -> object:
    """Denies what holds the text."""
    return {"decision": "deny" if "secret-data" in json.dumps(told["result"]) else "allow", "reason": "a secret"}


async def test_the_result_of_a_task_is_judged_as_that_of_its_tool() -> None:
    up = core()
    up.answers["tasks/result"] = lambda call: complete(content=[{"type": "text", "text": "secret-data"}])
    async with service() as it, tasks(up, url=it.url, tools=["slow"]) as h:
        it.answer = scanned
        id = await create(h)
        refusal = error(await h.call("tasks/result", taskId=id))
        assert refusal.message == "this call was denied by a check of the gateway: a secret"
        assert it.told[-1] == {
            "type": "after", "method": "tools/call", "upstream": "a", "subject": "slow", "principal": "anonymous",
            "roles": [], "endpoint": "", "task": id, "result": {"content": [{"type": "text", "text": "secret-data"}]},
        }  # fmt: skip
        it.answer = lambda told: {"decision": "change", "body": {"result": {"content": [], "isError": True}}}
        outcome = await h.call("tasks/result", taskId=id)
        assert decoded(outcome) == {"content": [], "isError": True}
        assert isinstance(outcome, Complete)
        assert outcome.is_error


async def test_the_result_in_the_state_of_a_task_is_judged_as_that_of_its_tool() -> None:
    up = extended()
    up.answers["tasks/get"] = lambda call: complete(
        resultType="complete",
        result={"content": [{"type": "text", "text": "secret-data"}], "_meta": {"k": 1}},
        **described("1", "completed"),
    )
    up.answers["tasks/cancel"] = up.answers["tasks/get"]
    async with service() as it, tasks(up, url=it.url) as h:
        it.answer = scanned
        who: dict[str, Any] = {"version": LATEST, "capabilities": DECLARED}
        id = await made(h, **who)
        for method in ("tasks/get", "tasks/cancel"):
            refusal = error(await h.call(method, taskId=id, **who))
            assert refusal.message == "this call was denied by a check of the gateway: a secret"
        it.answer = lambda told: {"decision": "change", "body": {"result": {"content": []}}}
        state = decoded(await h.call("tasks/get", taskId=id, **who))
        assert state["result"] == {"content": [], "_meta": {"k": 1}}
        assert (state["taskId"], state["status"]) == (id, "completed")


@pytest.mark.parametrize("result", ["secret-data", ["secret-data"]])
async def test_what_a_task_gives_as_its_result_is_judged_though_it_is_no_result(result: object) -> None:
    up = extended()
    up.answers["tasks/get"] = lambda call: complete(result=result, **described("1", "completed"))
    async with service() as it, tasks(up, url=it.url) as h:
        it.answer = scanned
        who: dict[str, Any] = {"version": LATEST, "capabilities": DECLARED}
        assert "denied by a check" in error(await h.call("tasks/get", taskId=await made(h, **who), **who)).message


async def test_a_task_without_a_result_yet_and_one_that_no_hook_selects_are_told_to_none() -> None:
    async with service() as it, tasks(core(), url=it.url, tools=["other"]) as h:
        await h.call("tasks/result", taskId=await create(h))
        assert it.told == []
    async with service() as it, tasks(core(), url=it.url) as h:
        await h.call("tasks/get", taskId=await create(h))
        assert [told["type"] for told in it.told] == ["after"], "of the call that became the task"
        assert error(await h.call("tasks/result", taskId="made up")).message == "Task not found"


@pytest.mark.parametrize(("mode", "fail", "delivered"), [("enforce", "closed", False), ("enforce", "open", True)])
async def test_of_a_hook_that_fails_the_result_of_a_task_is_told_or_not_as_the_settings_say(
    mode: str, fail: str, delivered: bool
) -> None:
    async with service() as it, tasks(core(), url=it.url, mode=mode, fail=fail) as h:
        id = await create(h)
        it.answer = lambda told: {}
        assert isinstance(await h.call("tasks/result", taskId=id), Complete) is delivered


@pytest.mark.parametrize(("mode", "heard"), [("enforce", 1), ("audit", 2)])
async def test_a_result_that_a_hook_has_to_judge_is_not_told_by_a_notification(mode: str, heard: int) -> None:
    async with service() as it, tasks(core(), url=it.url, mode=mode) as h:
        listener = h.listener()
        await create(h, listener=listener)
        for members in ({"status": "working"}, {"status": "completed", "result": {"content": []}}):
            h["a"].announce(TaskChanged("1", TOLD, first_level({**described("1"), **members})))
        assert len([change for change in listener.changes if isinstance(change, TaskChanged)]) == heard


@pytest.mark.parametrize(("mode", "held"), [("enforce", False), ("audit", True)])
async def test_a_result_that_a_hook_has_to_judge_is_in_no_list_of_tasks(mode: str, held: bool) -> None:
    up = core()
    up.answers["tasks/list"] = lambda call: complete(tasks=[{**described("1", "completed"), "result": {"content": []}}])
    async with service() as it, tasks(up, url=it.url, mode=mode) as h:
        listener = h.listener()
        id = await create(h, listener=listener)
        assert decoded(await h.call("tasks/list", listener=listener))["tasks"] == [
            {**described(id, "completed"), **({"result": {"content": []}} if held else {})}
        ]


async def test_what_hooks_said_is_in_the_audit(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with service() as it, gateway({"url": it.url}, audit={"file": str(file)}) as h:
        it.answer = lambda told: {"decision": "deny", "reason": "not today"}
        async with h.gateway.audit.running():
            await rm(h)
    record = json.loads(file.read_text().splitlines()[-1])
    assert record["hooks"] == ["before, enforce: deny: not today"]


async def test_without_a_hook_of_a_phase_there_is_no_stage() -> None:
    async with gateway() as h:
        assert "hooks" not in {row.feature for row in h.gateway.pipeline()}
    async with service() as it, gateway({"url": it.url, "phase": "after"}) as h:
        assert [row.place for row in h.gateway.pipeline() if row.feature == "hooks"] == ["JUDGE", "SEND"]


@pytest.mark.parametrize("phase", ["before", "after"])
async def test_a_call_that_no_hook_selects_goes_straight_on(phase: str) -> None:
    async with service() as it, gateway({"url": it.url, "tools": ["rm"], "phase": phase}) as h:
        outcomes = list[Outcome]()

        def handler(call: Call) -> Awaitable[Outcome]:
            awaited = asyncio.get_running_loop().create_future()
            awaited.set_result(complete(content=[]))
            handed_out.append(awaited)
            return awaited

        handed_out = list[Awaitable[Outcome]]()
        stage = h.gateway.feature(CallHooks).before if phase == "before" else h.gateway.feature(CallHooks).after
        for method, name in (("tools/call", "up__ls"), ("tools/list", "up__rm")):
            call = Call(row_of(method), {"name": raw(name)}, Caller(ALICE, LATEST), FakeClient())
            answer = stage(handler)(call)
            assert answer is handed_out[-1], "there is nothing between the call and what comes after the stage"
            outcomes.append(await answer)
        assert len(outcomes) == 2
        assert it.told == []


async def test_a_renamed_tool_whose_list_is_not_known_yet_is_told_to_its_hook_all_the_same() -> None:
    up = FakeUpstream("up", tools={})
    up.lists[Kind.TOOLS] = [tool("rm")]
    up.answers["tools/call"] = lambda call: complete(content=[])
    options = {"up": {"tools": {"overrides": {"rm": {"name": "tidy"}}}}}
    async with service() as it:
        it.answer = lambda told: {"decision": "deny"}
        access = {"hooks": [{"url": it.url, "secret": SECRET, "timeout": GUARD, "tools": ["rm"]}]}
        async with house(up, options=options, access=access, sleep=anyio.sleep) as h:
            refusal = error(await rm(h, name="up__tidy"))
            assert "denied by a check of the gateway" in refusal.message
            assert sent(h) == []
            assert error(await rm(h, name="up__none")).message == "Unknown tool: up__none"
        assert [told["subject"] for told in it.told] == ["rm"]


async def test_many_reloads_leave_no_session_open_and_calls_under_way_get_their_verdict() -> None:
    async with service() as it, gateway({"url": it.url}, {"url": it.url, "phase": "after"}) as h:
        it.hold = anyio.Event()
        outcomes: list[Outcome] = []
        kept = [h.gateway.feature(CallHooks)._hooks]

        async def call() -> None:
            outcomes.append(await rm(h))

        async with anyio.create_task_group() as tasks:
            for number in range(1, 21):
                tasks.start_soon(call)
                while len(it.told) < number:
                    await anyio.lowlevel.checkpoint()
                changed = [hook.model_copy(update={"timeout": 60 + number}) for hook in h.settings.access.hooks]
                access = h.settings.access.model_copy(update={"hooks": tuple(changed)})
                h.gateway.reconfigure(h.settings.model_copy(update={"access": access}), dict(h.upstreams))
                kept.append(h.gateway.feature(CallHooks)._hooks)
            assert it.connections() == 20
            it.hold.set()
        assert [type(outcome).__name__ for outcome in outcomes] == ["Complete"] * 20
        assert sum(told["type"] == "after" for told in it.told) == 20, "asked by the hooks of the time when it began"
        replaced = [hook.webhook for hooks in kept[:-1] for hook in hooks]
        while any(webhook._http.is_open for webhook in replaced):
            await anyio.lowlevel.checkpoint()
        while it.connections():
            await anyio.lowlevel.checkpoint()
        assert isinstance(await rm(h), Complete)


def forbid(h: House) -> None:
    """Reloads with a policy that allows nothing."""
    policy = h.settings.access.policy.model_copy(update={"default": "deny"})
    access = h.settings.access.model_copy(update={"policy": policy})
    h.gateway.reconfigure(h.settings.model_copy(update={"access": access}), dict(h.upstreams))


@pytest.mark.parametrize("known", [True, False])
async def test_a_result_is_judged_though_its_caller_may_not_use_the_tool_any_more_when_it_comes(known: bool) -> None:
    up = FakeUpstream("up", tools={})
    up.lists[Kind.TOOLS] = [tool("rm")]
    async with service() as it:
        it.answer = lambda told: {"decision": "deny", "reason": "a secret"}
        hook = {"url": it.url, "secret": SECRET, "timeout": GUARD, "phase": "after"}
        async with house(up, access={"hooks": [hook]}, sleep=anyio.sleep) as h:
            if known:
                await h.ready()

            def answer(call: Call) -> Outcome:
                forbid(h)
                return complete(content=[])

            up.answers["tools/call"] = answer
            assert error(await rm(h)).message == "this call was denied by a check of the gateway: a secret"
            assert [told["subject"] for told in it.told] == ["rm"]


async def test_the_result_of_a_task_is_judged_though_its_caller_may_not_reach_it_any_more_when_it_comes() -> None:
    up = core()
    async with service() as it, tasks(up, url=it.url, tools=["slow"]) as h:
        it.answer = scanned

        def answer(call: Call) -> Outcome:
            forbid(h)
            return complete(content=[{"type": "text", "text": "secret-data"}])

        up.answers["tasks/result"] = answer
        refusal = error(await h.call("tasks/result", taskId=await create(h)))
        assert refusal.message == "this call was denied by a check of the gateway: a secret"


@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_r82_a_call_that_a_hook_held_needs_the_approval_that_a_reload_brought_meanwhile(version: str) -> None:
    async with service() as it, gateway({"url": it.url}) as h:
        it.hold = anyio.Event()
        outcomes: list[Outcome] = []

        async def call() -> None:
            outcomes.append(await rm(h, version))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            while not it.told:
                await anyio.lowlevel.checkpoint()
            policy = settings_of({"up": {}}, checked("approved", it.url)).access.policy
            access = h.settings.access.model_copy(update={"policy": policy})
            h.gateway.reconfigure(h.settings.model_copy(update={"access": access}), dict(h.upstreams))
            it.hold.set()
            while not (outcomes or h.gateway.feature(CallApprovals).waiting()):
                await anyio.lowlevel.checkpoint()
            assert (outcomes, sent(h)) == ([], [])
            (waiting,) = h.gateway.feature(CallApprovals).waiting()
            assert h.gateway.feature(CallApprovals).decide(waiting.id, Principal("olga"), approve=True) is None
        assert isinstance(outcomes[0], Complete)
        assert len(sent(h)) == 1


LOGS_IN: dict[str, dict[str, object]] = {"up": {"command": None, "url": "http://127.0.0.1:1/", "oauth": {}}}


def checked(stage: str, url: str) -> dict[str, object]:
    """The access settings by which every call is judged: by a hook of a phase, or by an operator."""
    if stage == "approved":
        return {"policy": {"default": "deny", "roles": {"everyone": {"allow": [{"approve": "operator"}]}}}}
    return {"hooks": [{"url": url, "secret": SECRET, "timeout": GUARD, "phase": stage}]}


@pytest.mark.parametrize("stage", ["before", "after", "approved"])
async def test_nobody_is_asked_before_the_gateways_own_tool_to_log_in_with_is_called(stage: str) -> None:
    """As before the first login, when the list of its upstream is not known and cannot be."""
    up = FakeUpstream("up")
    up.reachable = False
    async with service() as it, house(up, options=LOGS_IN, access=checked(stage, it.url), sleep=anyio.sleep) as h:
        h.gateway.on_event(LoginAwaited("up", None, awaited=True))
        assert "has to log in first" in str(decoded(await rm(h, name="up__login")))
        assert (it.told, up.calls) == ([], [])


@pytest.mark.parametrize("stage", ["before", "after", "approved"])
async def test_the_gateways_own_tool_to_log_in_with_is_called_past_hooks_and_approvals(stage: str) -> None:
    up = FakeUpstream("up")
    up.lists[Kind.TOOLS] = [tool("rm")]
    async with service() as it, house(up, options=LOGS_IN, access=checked(stage, it.url), sleep=anyio.sleep) as h:
        await h.ready()
        h.gateway.on_event(LoginAwaited("up", None, awaited=True))
        assert "has to log in first" in str(decoded(await rm(h, name="up__login")))
        h.gateway.on_event(LoginAwaited("up", None, awaited=False))
        assert "No login is needed at up" in str(decoded(await rm(h, name="up__login")))
        assert it.told == []
        assert error(await rm(h, name="up__none")).message == "Unknown tool: up__none"
