"""Arguments that the settings fix or hide, of calls that a person approves: what callers and operators are shown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcproxy.call.calls import Complete, InputRequired, Outcome
from mcproxy.call.identity import Principal
from mcproxy.features.approvals.approval import payload
from mcproxy.features.approvals.feature import CallApprovals
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from mcproxy.telemetry.logs import REDACTED
from tests.fakes.upstream import FakeClient, FakeUpstream, House, complete, decoded, house, quiet, settings_of, tool
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

SECRET = "sk-live-0123456789abcdef"
ALICE = Principal("alice")
PROPERTIES = {name: {"type": "string"} for name in ("to", "key", "mode", "folder")}
OVERRIDES = {
    "to": {"rename": "target"},
    "key": {"value": f"Bearer {SECRET}"},
    "mode": {"hide": True, "default": "quiet"},
    "folder": {"value": "/srv/${caller.name}"},
}
ADDED = {"mode": "quiet", "folder": "/srv/alice"}
YES = {"action": "accept", "content": {"approve": True}}

Json = dict[str, Any]


@asynccontextmanager
async def gateway(approver: str) -> AsyncIterator[House]:
    up = FakeUpstream("up")
    up.lists[Kind.TOOLS] = [tool("rm", inputSchema={"type": "object", "properties": PROPERTIES})]
    up.answers["tools/call"] = lambda call: complete(content=[])
    options = {"up": {"tools": {"overrides": {"rm": {"arguments": OVERRIDES}}}}}
    rules: Json = {"policy": {"roles": {"everyone": {"allow": [{"tools": ["rm"], "approve": approver}]}}}}
    async with house(up, options=options, sleep=anyio.sleep) as h:
        await h.ready()
        await quiet()
        # As a reload of a file does that has the secret from a variable.
        settings = settings_of({"up": options["up"]}, rules).keeping_secret({SECRET})
        h.gateway.reconfigure(settings, dict(h.upstreams))
        yield h


async def rm(h: House, **given: Any) -> Outcome:
    return await h.call("tools/call", name="up__rm", principal=ALICE, arguments={"target": "x"}, **given)


def sent(h: House) -> list[object]:
    return [json.loads(bytes(call.params["arguments"])) for call in h["up"].calls if call.method == "tools/call"]


@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_r44_a_caller_who_approves_is_shown_what_it_sent_and_nothing_that_the_settings_add(version: str) -> None:
    async with gateway("caller") as h:
        client = FakeClient(answer=YES)
        outcome = await rm(h, version=version, client=client, capabilities={"elicitation": raw({})})
        if isinstance(outcome, InputRequired):
            ((key, question),) = outcome.requests.items()
            again: Json = {"requestState": outcome.state, "inputResponses": {key: YES}}
            outcome = await rm(h, version=version, capabilities={"elicitation": raw({})}, **again)
        else:
            (question,) = client.asked
        assert decoded(question.params)["message"] == (
            'Approve this call? The tool up__rm of the server up would be called with: {"target":"x"}'
        )
        assert isinstance(outcome, Complete)
        assert sent(h) == [{**ADDED, "to": "x", "key": f"Bearer {SECRET}"}]


async def test_r44_operators_and_their_webhook_are_shown_what_runs_without_secrets_of_the_settings() -> None:
    async with gateway("operator") as h, anyio.create_task_group() as tasks:
        tasks.start_soon(rm, h)
        with anyio.fail_after(GUARD):
            while not h.gateway.feature(CallApprovals).waiting():
                await anyio.lowlevel.checkpoint()
        (waiting,) = h.gateway.feature(CallApprovals).waiting()
        shown = {**ADDED, "to": "x", "key": f"Bearer {REDACTED}"}
        assert json.loads(waiting.shown_arguments) == shown
        assert decoded(payload(waiting, None))["arguments"] == shown
        h.gateway.feature(CallApprovals).decide(waiting.id, Principal("olga"), approve=True)
        with anyio.fail_after(GUARD):
            while not sent(h):
                await anyio.lowlevel.checkpoint()
        assert sent(h) == [{**shown, "key": f"Bearer {SECRET}"}]


async def test_an_operator_is_shown_what_a_caller_chose_though_the_settings_have_it_too() -> None:
    async with gateway("operator") as h, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: h.call("tools/call", name="up__rm", principal=ALICE, arguments={"target": SECRET}))
        with anyio.fail_after(GUARD):
            while not h.gateway.feature(CallApprovals).waiting():
                await anyio.lowlevel.checkpoint()
        (waiting,) = h.gateway.feature(CallApprovals).waiting()
        assert json.loads(waiting.shown_arguments)["to"] == SECRET
        h.gateway.feature(CallApprovals).decide(waiting.id, Principal("olga"), approve=False)
