"""What a handshake conversation makes of results and of tasks (2025-11-25): whom it asks and tells, when it stops."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcproxy.call.calls import Complete, Outcome
from mcproxy.call.clients import TaskChanged
from mcproxy.protocol.jsonrpc import Message, Notification, Request, encode, raw
from mcproxy.settings import UpstreamSettings, UpstreamTimeouts
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.context import LinkContext, SessionOwner
from mcproxy.upstream.conversation import MESSAGES_PER_TURN, Conversation
from mcproxy.upstream.link import Refused, Rejected, task_group
from tests.timeouts import GUARD
from tests.upstream.support import FakeClient, answering, decoded, failure, request, shaking_hands, tool

pytestmark = pytest.mark.anyio

STATUS = {"taskId": "1", "status": "working"}


def related(task: str) -> dict[str, object]:
    return {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": task}}}


@dataclass
class Wire:
    """A conversation whose server is the test."""

    conversation: Conversation
    published: list[object]
    sent: list[Any] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)
    on_cancelled: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
    """What the server does with a `notifications/cancelled`."""
    version: str = "2025-11-25"

    def says(self, cause: int | None = None, **members: object) -> None:
        message = {key: value for key, value in {"jsonrpc": "2.0", **members}.items() if value is not None}
        self.conversation.receive(json.dumps(message).encode(), cause)

    async def until(self, many: int) -> None:
        """Returns once so many messages were sent."""
        while len(self.sent) < many:
            await self.news.wait()

    async def send(self, message: Message) -> None:
        self.sent.append(decoded(encode(message)))
        self.news.set()
        self.news = anyio.Event()
        if isinstance(message, Notification) and message.method == "notifications/cancelled":
            await self.on_cancelled()
        if isinstance(message, Request) and message.method == "initialize":
            self.says(id=message.id, result={"protocolVersion": self.version, "capabilities": {"tasks": {}}})


@asynccontextmanager
async def wired(
    session: SessionOwner | None = None, version: str = "2025-11-25", **timeouts: float
) -> AsyncIterator[Wire]:
    published: list[object] = []
    spec = UpstreamSettings(name="up", prefix="up", command="fake", timeouts=UpstreamTimeouts(**timeouts))
    with anyio.fail_after(GUARD):
        async with task_group() as tasks:
            context = LinkContext(spec, Metrics(), published.append, "session" if session else None, session)
            wire: Wire

            async def send(message: Message) -> None:
                await wire.send(message)

            wire = Wire(shaking_hands(context, tasks, send), published, version=version)
            await wire.conversation.open()
            yield wire


async def test_r26_a_question_of_a_task_goes_to_the_client_that_waits_for_its_result_on_any_stream() -> None:
    """tasks, Input Required Status: clients "SHOULD expect messages to be delivered on any SSE stream"."""
    owner, other = answering({"action": "decline"}), FakeClient()
    async with wired() as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(wire.conversation, request("tasks/result", client=owner, taskId="1"))
        tasks.start_soon(wire.conversation, tool("busy", client=other))
        await wire.until(4)
        waiting, busy = (message["id"] for message in wire.sent[-2:])
        wire.says(busy, id="q", method="elicitation/create", params={"message": "?", **related("1")})
        await wire.until(5)
        assert wire.sent[-1] == {"jsonrpc": "2.0", "id": "q", "result": {"action": "decline"}}
        wire.says(busy, method="notifications/message", params={"level": "info", "data": 1, **related("1")})
        assert [method for method, _ in owner.told] == ["notifications/message"]
        assert (other.questions, other.told) == ([], [])
        for id in (waiting, busy):
            wire.says(id=id, result={})


@pytest.mark.parametrize(("version", "content"), [("2025-06-18", {"n": 1}), ("2025-11-25", [{"n": 1}])])
async def test_a_models_message_is_told_to_a_server_of_old_as_it_knows_them(version: str, content: Any) -> None:
    """2025-11-25, changelog: messages of sampling may have several blocks of content since."""
    message = {"role": "assistant", "model": "m"}
    client = answering({**message, "content": [{"n": 1}]})
    async with wired(version=version) as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(wire.conversation, tool("t", client=client))
        await wire.until(3)
        call = wire.sent[-1]["id"]
        wire.says(call, id="q", method="sampling/createMessage", params={"messages": [], "maxTokens": 1})
        await wire.until(4)
        assert wire.sent[-1]["result"] == {**message, "content": content}
        wire.says(id=call, result={})


def updates(many: int) -> bytes:
    """A batch of notifications."""
    method = "notifications/resources/updated"
    batch = [{"jsonrpc": "2.0", "method": method, "params": {"uri": f"x:{number}"}} for number in range(many)]
    return json.dumps(batch).encode()


async def test_r78_others_have_their_turn_while_a_batch_is_taken() -> None:
    async with wired() as wire:
        taken = wire.conversation.receive(updates(5 * MESSAGES_PER_TURN))
        assert taken is not None
        seen: list[int] = []

        async def watch() -> None:
            while True:
                seen.append(len(wire.published))
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await taken
            tasks.cancel_scope.cancel()
        assert list(map(attrgetter("uri"), wire.published)) == [f"x:{n}" for n in range(5 * MESSAGES_PER_TURN)]
        assert seen == [MESSAGES_PER_TURN * count for count in range(1, 6)]


async def test_nothing_more_is_taken_of_a_batch_once_the_link_is_lost() -> None:
    async with wired() as wire:
        taken = wire.conversation.receive(updates(5))
        wire.conversation.disconnect("gone")
        assert taken is not None
        await taken
        assert wire.published == []


async def test_a_call_whose_answer_has_its_id_as_a_text_asks_nothing_more() -> None:
    client = answering({"action": "decline"})
    async with wired() as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(wire.conversation, tool("first", client=FakeClient()))
        await wire.until(3)
        wire.says(id=str(wire.sent[2]["id"]), result={})
        tasks.start_soon(wire.conversation, tool("second", client=client))
        await wire.until(4)
        wire.says(id="q", method="elicitation/create", params={"message": "?"})
        await wire.until(5)
        assert wire.sent[-1] == {"jsonrpc": "2.0", "id": "q", "result": {"action": "decline"}}
        wire.says(id=wire.sent[3]["id"], result={})


@pytest.mark.parametrize(
    "said",
    [
        {"method": "roots/list", "params": []},
        {"method": "roots/list", "params": "none"},
        {"method": 1},
        {"jsonrpc": "1.0", "method": "roots/list"},
        {"jsonrpc": None, "level": "info", "msg": "a line of a log"},
    ],
)
async def test_r24_a_malformed_request_with_the_id_of_ours_is_no_answer_to_it(said: dict[str, Any]) -> None:
    outcomes: list[Outcome] = []

    async def call() -> None:
        outcomes.append(await wire.conversation(tool("t")))

    async with wired() as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await wire.until(3)
        id = wire.sent[2]["id"]
        wire.says(id=id, **said)
        wire.says(id=id, result={"content": []})
    assert [type(outcome) for outcome in outcomes] == [Complete]


@pytest.mark.parametrize("said", [{}, {"jsonrpc": "1.0", "result": {}, "more": 1}])
async def test_a_malformed_answer_fails_its_call_at_once(said: dict[str, Any]) -> None:
    outcomes: list[Outcome] = []

    async def call() -> None:
        outcomes.append(await wire.conversation(tool("t")))

    async with wired() as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await wire.until(3)
        wire.says(id=wire.sent[2]["id"], **said)
    assert "the answer is malformed" in failure(*outcomes).error.message


async def test_a_ping_that_comes_before_initialize_is_sent_is_answered() -> None:
    spec = UpstreamSettings(name="up", prefix="up", command="fake")
    sent: list[dict[str, Any]] = []

    async def send(message: Message) -> None:
        sent.append(decoded(encode(message)))

    with anyio.fail_after(GUARD):
        async with task_group() as tasks:
            conversation = shaking_hands(LinkContext(spec, Metrics(), lambda event: None), tasks, send)
            conversation.receive(b'{"jsonrpc":"2.0","id":7,"method":"ping"}')
    assert sent == [{"jsonrpc": "2.0", "id": 7, "result": {}}]


async def test_r60_a_request_of_the_server_that_cannot_be_read_is_refused() -> None:
    async with wired() as wire:
        wire.says(id="q", method="roots/list", params=[])
        await wire.until(3)
    refusal = {"code": -32600, "message": 'the member "params" must be an object'}
    assert wire.sent[2] == {"jsonrpc": "2.0", "id": "q", "error": refusal}


async def test_a_question_reaches_its_client_without_what_was_for_the_gateway_alone() -> None:
    client = answering({"action": "decline"})
    async with wired() as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(wire.conversation, tool("busy", client=client))
        await wire.until(3)
        params = {"message": "?", "task": {"ttl": 1000}, "_meta": {"progressToken": 1}}
        wire.says(wire.sent[2]["id"], id="q", method="elicitation/create", params=params)
        await wire.until(4)
        assert [question.params for question in client.questions] == [{"message": raw("?")}]
        wire.says(id=wire.sent[2]["id"], result={})


async def test_r26_a_question_of_a_task_whose_result_is_not_awaited_is_refused() -> None:
    other = FakeClient()
    async with wired() as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(wire.conversation, tool("busy", client=other))
        await wire.until(3)
        wire.says(id="q", method="elicitation/create", params={"message": "?", **related("1")})
        await wire.until(4)
        assert wire.sent[-1]["error"]["code"] == -32600
        assert other.questions == []
        wire.says(id=wire.sent[2]["id"], result={})


async def test_a_call_that_became_a_task_hears_of_its_progress_until_the_task_is_over() -> None:
    """tasks, Task Progress Notifications: the token "remains valid throughout the task lifetime"."""
    client, params = FakeClient(), {"name": "slow", "task": {}}
    async with wired() as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(wire.conversation, request("tools/call", client=client, **params))
        await wire.until(3)
        id, token = wire.sent[2]["id"], wire.sent[2]["params"]["_meta"]["progressToken"]
        wire.says(id=id, result={"task": STATUS})
        wire.says(method="notifications/progress", params={"progressToken": token, "progress": 1})
        wire.says(method="notifications/message", params={"level": "info", "data": "half", **related("1")})
        wire.says(method="notifications/message", params={"level": "info", "data": "not of it", **related("2")})
        wire.says(method="notifications/tasks/status", params={**STATUS, "status": "completed"})
        wire.says(method="notifications/progress", params={"progressToken": token, "progress": 2})
        assert [(method, told.get("progress"), told.get("data")) for method, told in client.told] == [
            ("notifications/progress", 1, None),
            ("notifications/message", None, "half"),
        ]


async def test_r25_a_question_is_taken_back_from_its_client_when_its_call_is_given_up() -> None:
    client = FakeClient()
    async with wired() as wire:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wire.conversation, tool("ask", client=client))
            await wire.until(3)
            call = wire.sent[2]["id"]
            wire.says(call, id="q", method="elicitation/create", params={"message": "?"})
            await client.asked.wait()
            tasks.cancel_scope.cancel()
        assert client.withdrawn == 1
        await wire.until(5)
        cancelled, answer = wire.sent[3:]
        assert (cancelled["method"], cancelled["params"]["requestId"]) == ("notifications/cancelled", call)
        assert (answer["id"], answer["error"]["code"]) == ("q", -32600)


async def _refuse() -> None:
    raise Rejected("HTTP 501")


@pytest.mark.parametrize("on_cancelled", [_refuse, anyio.sleep_forever], ids=["refuses", "does not take"])
async def test_r25_a_question_is_taken_back_also_where_its_server_does_not_hear_that_the_call_is_given_up(
    on_cancelled: Callable[[], Awaitable[None]],
) -> None:
    client = FakeClient()
    async with wired() as wire:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wire.conversation, tool("ask", client=client))
            await wire.until(3)
            wire.says(wire.sent[2]["id"], id="q", method="elicitation/create", params={"message": "?"})
            await client.asked.wait()
            wire.on_cancelled = on_cancelled
            tasks.cancel_scope.cancel()
        await wire.until(5)
        assert client.withdrawn == 1
        assert (wire.sent[4]["id"], wire.sent[4]["error"]["code"]) == ("q", -32600)


async def test_a_question_stays_where_another_call_may_have_asked_it() -> None:
    client, other = FakeClient(answer={"action": "decline"}), anyio.CancelScope()
    async with wired() as wire, anyio.create_task_group() as tasks:

        async def call() -> None:
            with other:
                await wire.conversation(tool("other", client=client, session="s"))

        tasks.start_soon(wire.conversation, tool("ask", client=client, session="s"))
        tasks.start_soon(call)
        await wire.until(4)
        wire.says(id="q", method="elicitation/create", params={"message": "?"})
        await client.asked.wait()
        other.cancel()
        await wire.until(5)
        client.may_answer.set()
        await wire.until(6)
        assert wire.sent[-1] == {"jsonrpc": "2.0", "id": "q", "result": {"action": "decline"}}
        for message in wire.sent[2:4]:
            wire.says(id=message["id"], result={})


async def test_a_question_of_a_task_stays_when_its_result_is_no_longer_awaited() -> None:
    """tasks: clients "MAY disconnect" from the wait at any time; the task goes on."""
    client, waiting = FakeClient(answer={"action": "decline"}), anyio.CancelScope()
    async with wired() as wire, anyio.create_task_group() as tasks:

        async def wait() -> None:
            with waiting:
                await wire.conversation(request("tasks/result", client=client, taskId="1"))

        tasks.start_soon(wait)
        await wire.until(3)
        wire.says(id="q", method="elicitation/create", params={"message": "?", **related("1")})
        await client.asked.wait()
        waiting.cancel()
        await wire.until(4)
        client.may_answer.set()
        await wire.until(5)
        assert wire.sent[-1] == {"jsonrpc": "2.0", "id": "q", "result": {"action": "decline"}}


async def test_initialize_is_not_said_again_where_the_link_ended_as_it_was_refused() -> None:
    sent: list[object] = []

    async def send(message: Message) -> None:
        sent.append(decoded(encode(message))["id"])
        refusal = {"jsonrpc": "2.0", "id": sent[-1], "error": {"code": -32022, "message": "another era"}}
        conversation.receive(json.dumps(refusal).encode())
        conversation.disconnect("the server answered in another era")

    context = LinkContext(UpstreamSettings(name="up", prefix="up", command="fake"), Metrics(), lambda event: None)
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            conversation = shaking_hands(context, tasks, send)
            with pytest.raises(Refused):
                await conversation.open()
    assert len(sent) == 1


async def test_no_result_passes_for_one_of_another_type() -> None:
    """A stateless client would be asked what nobody judged (2026-07-28, basic, ResultType)."""
    question = {
        "method": "elicitation/create",
        "params": {"mode": "url", "url": "https://evil.example", "message": "?"},
    }
    outcomes: list[Outcome] = []
    async with wired() as wire, anyio.create_task_group() as tasks:

        async def call() -> None:
            outcomes.append(await wire.conversation(tool("sly")))

        tasks.start_soon(call)
        await wire.until(3)
        wire.says(id=wire.sent[2]["id"], result={"resultType": "input_required", "inputRequests": {"1": question}})
    [outcome] = outcomes
    assert isinstance(outcome, Complete)
    assert decoded(raw(outcome.result)) == {"inputRequests": {"1": question}}


async def test_the_state_of_a_task_is_published_by_its_id() -> None:
    async with wired() as wire:
        wire.says(method="notifications/tasks/status", params=STATUS)
        wire.says(method="notifications/tasks/status", params={"taskId": 7})
        [changed] = wire.published
        assert isinstance(changed, TaskChanged)
        assert (changed.id, changed.method, decoded(raw(changed.params))) == ("1", "notifications/tasks/status", STATUS)


async def test_r46_a_wait_for_the_result_of_a_task_outlasts_the_idle_time() -> None:
    async with wired(idle=0.01) as wire, anyio.create_task_group() as tasks:
        outcomes: list[Outcome] = []

        async def wait() -> None:
            outcomes.append(await wire.conversation(request("tasks/result", taskId="1")))

        tasks.start_soon(wait)
        await wire.until(3)
        late = await wire.conversation(request("tasks/get", taskId="1"))
        assert not isinstance(late, Complete)
        wire.says(id=wire.sent[2]["id"], result={"content": []})
    assert [type(outcome) for outcome in outcomes] == [Complete]
