"""Ways on which a server leads a text around the hooks that judge its results: all end at the hook, or nowhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw

from mcproxy.call.calls import Call, Complete, Failed, InputRequired, LoginNeed, Outcome
from mcproxy.call.clients import InputRequest, Notice, ResourceUpdated, TaskChanged
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject, Params, first_level, raw
from mcproxy.protocol.methods import ELICITATION_COMPLETE, LOG_MESSAGE, PROGRESS, Kind
from tests.fakes.upstream import (
    FakeClient,
    FakeListener,
    FakeUpstream,
    House,
    complete,
    decoded,
    error,
    failed,
    house,
    quiet,
    tool,
)
from tests.features.hooks.test_hooks import SECRET, Service, service, tasks
from tests.gateway.tasks.test_relay import DECLARED, TOLD, core, create, described, extended, made
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

TEXT = "secret-data"
DENIED = "this call was denied by a check of the gateway: a secret"


def scanned(told: Any) -> object:
    """Denies whatever holds the text."""
    return {"decision": "deny" if TEXT in json.dumps(told) else "allow", "reason": "a secret"}


@asynccontextmanager
async def scanning(up: FakeUpstream, **hook: object) -> AsyncIterator[tuple[Service, House]]:
    up.lists.setdefault(Kind.TOOLS, [tool("rm"), tool("ls")])
    async with service() as it:
        it.answer = scanned
        options = [{"secret": SECRET, "timeout": GUARD, "url": it.url, "phase": "after", **hook}]
        async with house(up, access={"hooks": options}) as h:
            await h.ready()
            await quiet()
            it.told.clear()
            yield it, h


def server(answer: Callable[[Call], Outcome] = lambda call: complete(content=[])) -> FakeUpstream:
    up = FakeUpstream("up", tools={}, prompts={}, resources={"subscribe": True}, logging={})
    up.lists[Kind.TOOLS] = [tool("rm"), tool("ls")]
    up.lists[Kind.PROMPTS] = [{"name": "ask"}]
    up.answers["tools/call"] = answer
    up.answers["resources/subscribe"] = lambda call: complete()
    return up


class Talking(FakeUpstream):
    """Says something to the caller's client during each call of `rm`, and asks it something."""

    def __init__(self, say: Callable[[Call], Any]) -> None:
        super().__init__("up", tools={}, logging={})
        self.lists[Kind.TOOLS] = [tool("rm"), tool("ls")]
        self.answers["tools/call"] = lambda call: complete(content=[])
        self._say = say

    async def __call__(self, call: Call) -> Outcome:
        if call.method == "tools/call":
            said = self._say(call)
            if said is not None:
                await said
        return await super().__call__(call)


# Errors


@pytest.mark.parametrize("member", ["message", "data"])
@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read"])
async def test_r89_an_error_is_judged_like_a_result(member: str, method: str) -> None:
    sent = ErrorObject(-32050, TEXT if member == "message" else "x", raw({"a": TEXT}) if member == "data" else None)
    up = server()
    up.answers[method] = lambda call: Failed(sent, Party.UPSTREAM)
    async with scanning(up, on=["tools/call", "prompts/get", "resources/read"]) as (it, h):
        names: dict[str, Any] = {"uri": "up+file:///a"} if method == "resources/read" else {"name": "up__rm"}
        names = {"name": "up__ask"} if method == "prompts/get" else names
        refusal = error(await h.call(method, **names))
        assert (refusal.message, refusal.data) == (DENIED, None)
        assert it.told[0]["error"]["code"] == -32050
        it.answer = lambda told: {"decision": "allow"}
        assert error(await h.call(method, **names)) == sent


async def test_an_error_can_be_allowed_or_denied_and_not_changed() -> None:
    up = server(lambda call: Failed(ErrorObject(-32050, "x"), Party.UPSTREAM))
    async with scanning(up) as (it, h):
        it.answer = lambda told: {"decision": "change", "body": {"error": {}, "result": {}}}
        assert "could not be made" in error(await h.call("tools/call", name="up__rm")).message


async def test_r89_what_is_raised_while_a_call_is_sent_is_judged() -> None:
    def raising(call: Call) -> Outcome:
        raise McpError(INTERNAL_ERROR, f"the child ended: {TEXT}", reason=Reason.UNAVAILABLE)

    async with scanning(server(raising)) as (_, h):
        assert error(await h.call("tools/call", name="up__rm")).message == DENIED


async def test_r89_the_reasons_of_a_server_that_wants_a_login_are_not_told() -> None:
    need = LoginNeed("up", None, TEXT)
    up = server(lambda call: Failed(ErrorObject(INTERNAL_ERROR, TEXT), Party.UPSTREAM, Reason.LOGIN_NEEDED, need))
    async with scanning(up) as (it, h):
        outcome = await h.call("tools/call", name="up__rm")
        assert TEXT not in str(outcome)
        assert it.told == []


async def test_the_gateways_own_refusals_are_told_to_no_hook() -> None:
    async with scanning(server()) as (it, h):
        assert "Unknown tool" in error(await h.call("tools/call", name="up__none")).message
        assert it.told == []


# Notifications


async def test_r89_of_progress_no_text_and_no_number_of_the_server_is_told() -> None:
    def say(call: Call) -> None:
        call.client.notify(
            PROGRESS, first_level({"progress": 7061, "total": 9999, "message": TEXT, "_meta": {"t": TEXT}})
        )
        call.client.notify(PROGRESS, first_level({"progress": TEXT}))

    async with scanning(Talking(say)) as (_, h):
        client = FakeClient()
        await h.call("tools/call", client=client, name="up__rm")
        assert client.notified == [(PROGRESS, {"progress": raw(1)}), (PROGRESS, {"progress": raw(2)})]


@pytest.mark.parametrize("method", [LOG_MESSAGE, "notifications/x", "notifications/tools/partial", "x/said"])
@pytest.mark.parametrize("name", ["up__rm", "up__ls"])
async def test_r89_other_notifications_during_a_call_are_dropped(method: str, name: str) -> None:
    def say(call: Call) -> None:
        call.client.notify(method, first_level({"level": "error", "data": TEXT}))

    async with scanning(Talking(say), tools=["rm"]) as (_, h):
        client = FakeClient()
        await h.call("tools/call", client=client, name=name)
        assert client.notified == [], "on a shared stream it cannot be told which call a log line is about"


async def test_progress_of_calls_that_no_hook_selects_passes_whole() -> None:
    params = first_level({"progress": 1, "message": "hello"})
    async with scanning(Talking(lambda call: call.client.notify(PROGRESS, params)), tools=["rm"]) as (_, h):
        client = FakeClient()
        await h.call("tools/call", client=client, name="up__ls")
        assert client.notified == [(PROGRESS, params)]


@pytest.mark.parametrize("mode", ["enforce", "audit"])
async def test_r89_between_calls_no_log_line_is_told_and_an_update_has_its_uri_alone(mode: str) -> None:
    async with scanning(server(), mode=mode) as (_, h):
        listener = h.listener(level="debug")
        assert isinstance(await h.call("resources/subscribe", listener=listener, uri="up+file:///a"), Complete)
        line = Notice(LOG_MESSAGE, first_level({"level": "error", "data": TEXT}), "error")
        h["up"].announce(line)
        update = first_level({"uri": "file:///a", "text": TEXT})
        h["up"].announce(ResourceUpdated("file:///a", update))
        await listener.hears(ResourceUpdated("up+file:///a"))
        assert (line in listener.changes) is (mode == "audit")
        (told,) = (change for change in listener.changes if isinstance(change, ResourceUpdated))
        assert (TEXT in str(decoded(told.params))) is (mode == "audit")


async def test_r89_the_end_of_an_elicitation_is_told_without_further_members() -> None:
    def say(call: Call) -> None:
        assert call.listener is not None
        call.listener.signal(Notice(ELICITATION_COMPLETE, first_level({"elicitationId": "1", "text": TEXT})))
        call.listener.signal(Notice("x/said", first_level({"text": TEXT})))

    async with scanning(Talking(say)) as (_, h):
        listener = h.listener()
        await h.call("tools/call", listener=listener, name="up__rm")
        assert [change for change in listener.changes if isinstance(change, Notice)] == [
            Notice(ELICITATION_COMPLETE, first_level({"elicitationId": "1"}))
        ]


# Questions


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
async def test_r89_a_question_during_a_call_is_judged_before_it_is_asked(method: str) -> None:
    refused: list[str] = []

    async def ask(call: Call) -> None:
        for text in (TEXT, "harmless"):
            try:
                await call.client.ask(InputRequest(method, first_level({"message": text})))
            except McpError as refusal:
                refused.append(refusal.message)

    async with scanning(Talking(ask)) as (it, h):
        client = FakeClient()
        assert isinstance(await h.call("tools/call", client=client, name="up__rm"), Complete)
        assert client.asked == [InputRequest(method, first_level({"message": "harmless"}))]
        assert refused == [DENIED]
        assert it.told[0]["requests"] == [{"method": method, "params": {"message": TEXT}}]


async def test_r89_a_question_with_a_member_twice_is_not_asked() -> None:
    async def ask(call: Call) -> None:
        twice = {"a": Raw(b'{"message":"harmless","message":"x"}')}
        with pytest.raises(McpError, match="that no hook can judge"):
            await call.client.ask(InputRequest("elicitation/create", twice))

    async with scanning(Talking(ask)) as (_, h):
        client = FakeClient()
        await h.call("tools/call", client=client, name="up__rm")
        assert client.asked == []


async def test_r89_a_question_outside_of_a_call_is_refused() -> None:
    async def ask(call: Call) -> None:
        assert call.listener is not None
        with pytest.raises(McpError, match="this belongs to no call"):
            await call.listener.ask(InputRequest("elicitation/create", first_level({"message": "harmless"})))

    async with scanning(Talking(ask)) as (_, h):
        listener = h.listener()
        await h.call("tools/call", listener=listener, name="up__ls")
        assert not isinstance(listener, FakeListener) or listener.changes == []


@pytest.mark.parametrize("text", [TEXT, "harmless"])
async def test_r89_a_result_that_asks_for_input_is_judged(text: str) -> None:
    def asking(call: Call) -> Outcome:
        params: Params = first_level({"message": text})
        result = first_level(
            {
                "resultType": "input_required",
                "inputRequests": {"q": {"method": "elicitation/create", "params": params}},
                "requestState": "s",
                "content": TEXT,
            }
        )
        return InputRequired({"q": InputRequest("elicitation/create", params)}, "s", result)

    async with scanning(server(asking)) as (it, h):
        declared = {"elicitation": raw({})}
        outcome = await h.call("tools/call", version=LATEST, capabilities=declared, name="up__rm")
        if text == TEXT:
            assert error(outcome).message == DENIED
        else:
            assert isinstance(outcome, InputRequired)
            assert "content" not in outcome.result
        assert it.told[0]["requests"][0]["params"] == {"message": text}


async def test_the_verdicts_on_one_call_are_bounded() -> None:
    async def ask(call: Call) -> None:
        for _ in range(100):
            await call.client.ask(InputRequest("roots/list", {}))
        assert len(call.notes.verdicts) == 32

    async with scanning(Talking(ask)) as (it, h):
        await h.call("tools/call", name="up__rm")
        assert len(it.told) == 101


# Tasks


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
@pytest.mark.parametrize(
    ("members", "denied"),
    [
        ({"statusMessage": TEXT}, False),
        ({"_meta": {"text": TEXT}}, False),
        ({"partialResult": {"content": TEXT}}, False),
        ({"createdAt": TEXT}, False),
        ({"pollIntervalMs": TEXT}, False),
        ({"error": {"code": 1, "message": TEXT}}, True),
        ({"inputRequests": {"q": {"method": "elicitation/create", "params": {"message": TEXT}}}}, True),
        ({"result": {"content": [{"type": "text", "text": TEXT}]}}, True),
    ],
)
async def test_r89_a_tasks_state_tells_nothing_that_was_not_judged(
    method: str, members: dict[str, object], denied: bool
) -> None:
    up = extended()
    up.answers[method] = lambda call: complete(**{**described("1"), **members})
    async with service() as it, tasks(up, url=it.url) as h:
        it.answer = scanned
        who: dict[str, Any] = {"version": LATEST, "capabilities": DECLARED}
        id = await made(h, **who)
        outcome = await h.call(method, taskId=id, **who)
        assert isinstance(outcome, Failed) is denied
        assert TEXT not in str(decoded(outcome) if isinstance(outcome, Complete) else outcome)
        if isinstance(outcome, Complete):
            assert decoded(outcome)["status"] == "working"


async def test_r89_lists_and_notifications_of_tasks_tell_nothing_that_was_not_judged() -> None:
    up = core()
    members = {"statusMessage": TEXT, "error": {"message": TEXT}, "inputRequests": {"q": TEXT}, "_meta": {"a": TEXT}}
    up.answers["tasks/list"] = lambda call: complete(tasks=[{**described("1"), **members}])
    async with service() as it, tasks(up, url=it.url) as h:
        listener = h.listener()
        id = await create(h, listener=listener)
        assert decoded(await h.call("tasks/list", listener=listener))["tasks"] == [described(id)]
        h["a"].announce(TaskChanged("1", TOLD, first_level({**described("1"), **members})))
        (told,) = (change for change in listener.changes if isinstance(change, TaskChanged))
        assert decoded(told.params) == described(id)


async def test_r89_a_call_that_became_a_task_tells_no_more_than_others() -> None:
    clients = []

    def say(call: Call) -> None:
        clients.append(call.client)

    async with scanning(Talking(say)) as (_, h):
        client = FakeClient()
        await h.call("tools/call", version=LATEST_HANDSHAKE, client=client, name="up__rm")
        clients[0].notify(PROGRESS, first_level({"progress": 5, "message": TEXT}))  # it goes on after the call
        clients[0].notify(LOG_MESSAGE, first_level({"level": "error", "data": TEXT}))
        assert client.notified == [(PROGRESS, {"progress": raw(1)})]


async def test_messages_of_a_server_that_no_enforcing_hook_judges_pass() -> None:
    params = first_level({"level": "error", "data": "hello"})
    async with scanning(
        Talking(lambda call: call.client.notify(LOG_MESSAGE, params)), upstreams=["other*"], mode="audit"
    ) as (
        _,
        h,
    ):
        client = FakeClient()
        await h.call("tools/call", client=client, name="up__rm")
        assert client.notified == [(LOG_MESSAGE, params)]


async def test_an_error_is_told_to_an_auditing_hook_and_passes() -> None:
    async with scanning(server(lambda call: failed(TEXT)), mode="audit") as (it, h):
        assert error(await h.call("tools/call", name="up__rm")).message == TEXT
        assert TEXT in json.dumps(it.told[0]["error"])
