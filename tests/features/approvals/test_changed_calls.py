"""Calls that would be others by the time a person approves them: through all of the gateway, whoever is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import pytest
from msgspec import Raw

from mcproxy.call.calls import Complete, Failed, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import Reason
from mcproxy.call.identity import Principal
from mcproxy.features.approvals.feature import CallApprovals
from mcproxy.protocol.eras import LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from tests.fakes.upstream import FakeClient, FakeUpstream, House, complete, error, house, quiet, settings_of, tool
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

ALICE, OLGA = Principal("alice"), Principal("olga")
RM = tool("rm", inputSchema={"type": "object", "properties": {"path": {"type": "string"}}})
CHANGED = (
    "this call was not approved: the configuration, the server or the tool changed before it was sent; "
    "list the tools, and call again"
)

Json = dict[str, object]


@pytest.fixture(params=["caller", "operator"])
def access(request: pytest.FixtureRequest) -> Json:
    rules = [{"tools": ["rm"], "approve": request.param}, {}]
    return {"policy": {"roles": {"everyone": {"allow": rules}}}}


def server() -> FakeUpstream:
    up = FakeUpstream("up")
    up.lists[Kind.TOOLS] = [RM]
    up.answers["tools/call"] = lambda call: complete(content=[])
    return up


@asynccontextmanager
async def gateway(access: Json, **options: object) -> AsyncIterator[House]:
    other = FakeUpstream("other")
    async with house(server(), other, access=access, options={"up": options}, sleep=anyio.sleep) as h:
        await h.ready()
        await quiet()
        yield h


def reload(h: House, access: Json, options: Json | None = None, *, without: str = "") -> None:
    specs: dict[str, Json] = {name: options or {} if name == "up" else {} for name in h.upstreams if name != without}
    h.gateway.reconfigure(settings_of(specs, access), {name: h.upstreams[name] for name in specs})


def with_path(**override: object) -> Json:
    """Settings of the upstream, with an override of the argument."""
    return {"tools": {"overrides": {"rm": {"arguments": {"path": override}}}}}


@dataclass
class SlowClient(FakeClient):
    """Approves once it may."""

    answer: object = field(default_factory=lambda: {"action": "accept", "content": {"approve": True}})
    may_answer: anyio.Event = field(default_factory=anyio.Event)

    async def ask(self, request: InputRequest) -> Raw:
        answer = await super().ask(request)
        await self.may_answer.wait()
        return answer


@asynccontextmanager
async def waiting(h: House, arguments: object) -> AsyncIterator[list[Outcome]]:
    """The outcome of a call, once it is there; it waits for a person meanwhile, who approves in the end."""
    client, outcomes = SlowClient(), list[Outcome]()

    async def make() -> None:
        made = await h.call(
            "tools/call",
            version=LATEST_HANDSHAKE,
            capabilities={"elicitation": raw({})},
            principal=ALICE,
            client=client,
            name="up__rm",
            arguments=arguments,
        )
        outcomes.append(made)

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(make)
            while not (client.asked or h.gateway.feature(CallApprovals).waiting()):
                await anyio.lowlevel.checkpoint()
            yield outcomes
            for waits in h.gateway.feature(CallApprovals).waiting():
                h.gateway.feature(CallApprovals).decide(waits.id, OLGA, approve=True)
            client.may_answer.set()


async def over(outcomes: list[Outcome]) -> None:
    """Returns once a call has its outcome."""
    while not outcomes:
        await anyio.lowlevel.checkpoint()


def assert_void(outcome: Outcome) -> None:
    assert isinstance(outcome, Failed), outcome
    assert (outcome.reason, error(outcome).message) == (Reason.APPROVAL_WITHDRAWN, CHANGED)


async def test_r82_an_approval_is_void_at_once_where_the_settings_would_send_other_arguments(access: Json) -> None:
    async with gateway(access, **with_path(value="/tmp")) as h:
        async with waiting(h, {}) as outcomes:
            reload(h, access, with_path(value="/"))
            await over(outcomes)
            assert_void(*outcomes)
        assert h["up"].count("tools/call") == 0


async def test_r82_an_approval_is_void_at_once_where_its_caller_may_not_send_an_argument_any_more(access: Json) -> None:
    async with gateway(access, **with_path(description="A file.")) as h:
        async with waiting(h, {"path": "/a"}) as outcomes:
            reload(h, access, with_path(rename="file"))
            await over(outcomes)
            assert_void(*outcomes)
        assert h["up"].count("tools/call") == 0


async def test_r82_an_approval_is_void_at_once_where_another_server_has_the_name(access: Json) -> None:
    async with gateway(access) as h:
        async with waiting(h, {"path": "/a"}) as outcomes:
            before, h.upstreams["up"] = h["up"], server()
            reload(h, access)
            h["up"].on_event = h.gateway.on_event
            h["up"].connect()
            await over(outcomes)
            assert_void(*outcomes)
        assert before.count("tools/call") == h["up"].count("tools/call") == 0


async def test_r82_an_approval_is_void_at_once_where_the_server_is_gone(access: Json) -> None:
    async with gateway(access) as h:
        async with waiting(h, {"path": "/a"}) as outcomes:
            reload(h, access, without="up")
            await over(outcomes)
            assert_void(*outcomes)
        assert h["up"].count("tools/call") == 0


async def test_a_reload_that_changes_nothing_of_a_call_leaves_it_waiting(access: Json) -> None:
    async with gateway(access) as h:
        async with waiting(h, {"path": "/a"}) as outcomes:
            reload(h, access, without="other")
            reload(h, access, {"max_in_flight": 7})
            await quiet()
            assert outcomes == []
        assert isinstance(outcomes[0], Complete)
        assert h["up"].count("tools/call") == 1


async def test_r82_an_approval_is_void_where_the_tool_changed_before_it_was_given(access: Json) -> None:
    async with gateway(access) as h:
        async with waiting(h, {"path": "/a"}) as outcomes:
            h["up"].list_changed(Kind.TOOLS, [tool("rm", description="Something else.")])
            await quiet()
        assert_void(*outcomes)
        assert h["up"].count("tools/call") == 0


@pytest.mark.parametrize("description", [None, "Something else."], ids=["the same", "another"])
async def test_r82_an_idle_server_is_started_and_its_tool_compared_before_the_approved_call_is_sent(
    access: Json, description: str | None
) -> None:
    async with gateway(access, idle_stop=60) as h:
        up = h["up"]
        up.idle()
        await quiet()
        up.calls.clear()
        async with waiting(h, {"path": "/a"}) as outcomes:
            assert up.calls == [], "nothing is started before a person approves"
            if description is not None:
                up.lists[Kind.TOOLS] = [{**RM, "description": description}]
        if description is None:
            assert isinstance(outcomes[0], Complete)
        else:
            assert_void(*outcomes)
        assert up.count("tools/call") == (description is None)


async def test_r82_a_server_whose_tools_cannot_be_compared_gets_no_approved_call(access: Json) -> None:
    async with gateway(access, idle_stop=60) as h:
        h["up"].idle()
        async with waiting(h, {"path": "/a"}) as outcomes:
            h["up"].reachable = False
        assert error(outcomes[0]).message == "upstream 'up': connection refused"
        assert h["up"].count("tools/call") == 0


async def test_r82_of_an_argument_that_comes_twice_none_is_shown_or_sent(access: Json) -> None:
    async with gateway(access) as h:
        refusal = error(await h.call("tools/call", name="up__rm", arguments=Raw(b'{"path": "/", "path": "/tmp/a"}')))
        assert refusal.message == "\"arguments\" names the member 'path' twice: send each member once"
        assert h.gateway.feature(CallApprovals).waiting() == []
        assert h["up"].count("tools/call") == 0
