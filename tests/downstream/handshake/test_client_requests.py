"""What a client may be asked."""

from __future__ import annotations

import json

import anyio
import pytest

from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.downstream.handshake.client_requests import ask, check_declared
from mcproxy.pending_requests import PeerGone, PendingRequests
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Message, Notification, Request, Response, raw
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def caller(capabilities: dict[str, object]) -> Caller:
    return Caller(ANONYMOUS, "2025-11-25", {name: raw(value) for name, value in capabilities.items()})


def question(method: str, **params: object) -> InputRequest:
    return InputRequest(method, {name: raw(value) for name, value in params.items()})


FORM = question("elicitation/create", message="?")
URL = question("elicitation/create", mode="url", url="https://x")
SAMPLE = question("sampling/createMessage")
SAMPLE_WITH_TOOLS = question("sampling/createMessage", tools=[])


@pytest.mark.parametrize(
    ("capabilities", "request_", "code"),
    [
        ({}, FORM, METHOD_NOT_FOUND),
        ({"elicitation": {}}, FORM, None),
        ({"elicitation": {"form": {}}}, FORM, None),
        ({"elicitation": {"url": {}}}, FORM, INVALID_PARAMS),
        ({"elicitation": {}}, URL, INVALID_PARAMS),
        ({"elicitation": {"url": {}}}, URL, None),
        ({"sampling": {}}, SAMPLE, None),
        ({"sampling": {}}, SAMPLE_WITH_TOOLS, INVALID_PARAMS),
        ({"sampling": {"tools": {}}}, SAMPLE_WITH_TOOLS, None),
        ({"roots": {}}, SAMPLE, METHOD_NOT_FOUND),
        ({"roots": {}}, question("roots/list"), None),
        ({"anything": {}}, question("anything/else"), METHOD_NOT_FOUND),
        ({"extensions": {"io.x/novel": {}}}, question("novel/ask"), None),
        ({"extensions": {"io.x/novel": {}}}, question("tools/call"), METHOD_NOT_FOUND),
        ({"extensions": {"io.modelcontextprotocol/ui": {}}}, question("novel/ask"), METHOD_NOT_FOUND),
    ],
)
def test_a_client_is_asked_what_it_declared_and_nothing_else(
    capabilities: dict[str, object], request_: InputRequest, code: int | None
) -> None:
    if code is None:
        check_declared(caller(capabilities), request_)
        return
    with pytest.raises(McpError, match="did not declare") as refusal:
        check_declared(caller(capabilities), request_)
    assert refusal.value.code == code


async def test_a_question_that_stays_unanswered_is_given_up_and_taken_back() -> None:
    sent: list[Message] = []
    with anyio.fail_after(GUARD), pytest.raises(McpError, match="ask_timeout") as refusal:
        await ask(PendingRequests(), caller({"roots": {}}), question("roots/list"), sent.append, 0.01)
    assert refusal.value.reason is Reason.TIMEOUT
    asked, taken_back = sent
    assert isinstance(asked, Request)
    assert isinstance(taken_back, Notification)


@pytest.mark.parametrize(("version", "choices"), [("2025-06-18", "enum"), ("2025-11-25", "oneOf")])
async def test_a_form_is_spelled_as_the_client_knows_it(version: str, choices: str) -> None:
    field = {"type": "string", "oneOf": [{"const": "s", "title": "Small"}]}
    form = question("elicitation/create", requestedSchema={"type": "object", "properties": {"size": field}})
    asked: list[Message] = []

    def answer(message: Message) -> None:
        asked.append(message)
        assert isinstance(message, Request)
        requests.settle(Response(message.id, {"action": raw("decline")}))

    requests = PendingRequests()
    client = Caller(ANONYMOUS, version, {"elicitation": raw({})})
    assert json.loads(bytes(await ask(requests, client, form, answer, 60))) == {"action": "decline"}
    [message] = asked
    assert isinstance(message, Request)
    assert choices in json.loads(bytes(message.params["requestedSchema"]))["properties"]["size"]


async def test_a_client_that_is_gone_is_not_waited_for() -> None:
    def gone(message: Message) -> None:
        raise PeerGone("it hung up")

    with anyio.fail_after(GUARD), pytest.raises(McpError, match="it hung up"):
        await ask(PendingRequests(), caller({"roots": {}}), question("roots/list"), gone, 60)
