"""The twin of `mcproxy.features.approvals.feature`, through all of the gateway and in both eras."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.access.audit.operator_records import OperatorRecord
from mcproxy.access.outgoing.webhooks import WebhookFailed
from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import ANONYMOUS, Caller, Principal
from mcproxy.features.approvals.feature import NOT_WAITING, OWN_CALL, VOID, CallApprovals
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, Era
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, MISSING_CLIENT_CAPABILITY, Params, first_level, raw
from mcproxy.protocol.methods import Kind, row_of
from mcproxy.settings.access.approvals import ApprovalSettings
from tests.fakes.bridging import Time
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
from tests.http.timers import COMMANDED, commanded_loop
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

YES = {"action": "accept", "content": {"approve": True}}
NO = {"action": "decline"}
FORMS = {"elicitation": raw({})}
ALICE, OLGA = Principal("alice"), Principal("olga")


def policy(*rules: dict[str, object], **roles: object) -> dict[str, object]:
    return {"policy": {"roles": {"everyone": {"allow": [*rules, {"tools": ["*"]}]}, **roles}}}


CALLERS: dict[str, object] = {"tools": ["rm"], "approve": "caller"}
OPERATORS: dict[str, object] = {"tools": ["rm"], "approve": "operator"}
BY_CALLER, BY_OPERATOR = policy(CALLERS), policy(OPERATORS)


@asynccontextmanager
async def gateway(access: object = BY_CALLER, up: FakeUpstream | None = None, **given: Any) -> AsyncIterator[House]:
    up = up or FakeUpstream("up", tools={})
    up.lists[Kind.TOOLS] = [tool("rm"), tool("ls")]
    up.answers.setdefault("tools/call", lambda call: complete(content=[]))
    async with house(up, access=access, **{"sleep": anyio.sleep, **given}) as h:
        await h.ready()
        await quiet()
        yield h


async def rm(h: House, *, version: str = LATEST, name: str = "up__rm", **params: Any) -> Outcome:
    params = {"arguments": {"path": "/a"}, "capabilities": FORMS, "principal": ALICE, **params}
    return await h.call("tools/call", version=version, name=name, **params)


async def paused(h: House, **params: Any) -> InputRequired:
    outcome = await rm(h, **params)
    assert isinstance(outcome, InputRequired), outcome
    return outcome


def retry(required: InputRequired, answer: object = YES) -> dict[str, Any]:
    return {"requestState": required.state, "inputResponses": dict.fromkeys(required.requests, answer)}


def counted(h: House, approver: str, outcome: str) -> float:
    labels = {"approver": approver, "outcome": outcome}
    return h.metrics.registry.get_sample_value("mcproxy_approvals_total", labels) or 0


def ran(h: House) -> int:
    return h["up"].count("tools/call")


def failed_for(outcome: Outcome) -> Reason:
    assert isinstance(outcome, Failed), outcome
    return outcome.reason


# A caller of either era


async def test_a_stateless_caller_is_asked_by_a_result_and_its_retry_runs_the_call_once() -> None:
    async with gateway() as h:
        asked = await paused(h)
        ((_, request),) = asked.requests.items()
        assert request.method == "elicitation/create"
        assert 'The tool up__rm of the server up would be called with: {"path":"/a"}' in bytes(
            request.params["message"]
        ).decode().replace("\\", "")
        assert ran(h) == 0
        assert decoded(await rm(h, **retry(asked))) == {"content": []}
        assert ran(h) == 1
        assert counted(h, "caller", "used") == 1


async def test_a_handshake_caller_is_asked_while_its_call_lasts() -> None:
    async with gateway() as h:
        client = FakeClient(answer=YES)
        assert decoded(await rm(h, version=LATEST_HANDSHAKE, client=client)) == {"content": []}
        assert [request.method for request in client.asked] == ["elicitation/create"]
        assert ran(h) == 1


@pytest.mark.parametrize(
    ("answer", "reason", "outcome"),
    [
        (NO, Reason.APPROVAL_DENIED, "denied"),
        ({"action": "accept", "content": {"approve": False}}, Reason.APPROVAL_DENIED, "denied"),
        ({"action": "cancel"}, Reason.APPROVAL_WITHDRAWN, "withdrawn"),
    ],
)
async def test_what_is_denied_and_what_is_dismissed_are_told_apart_and_nothing_runs(
    answer: object, reason: Reason, outcome: str
) -> None:
    async with gateway() as h:
        results = [
            await rm(h, **retry(await paused(h), answer)),
            await rm(h, version=LATEST_HANDSHAKE, client=FakeClient(answer=answer)),
        ]
        assert [failed_for(result) for result in results] == [reason, reason]
        assert [error(result).data for result in results] == [raw({"approval": outcome})] * 2
        assert ran(h) == 0
        assert counted(h, "caller", outcome) == 2


@pytest.mark.parametrize(
    ("version", "code"), [(LATEST, MISSING_CLIENT_CAPABILITY), (LATEST_HANDSHAKE, INVALID_REQUEST)]
)
async def test_a_client_that_cannot_show_a_form_is_refused_with_the_reason(version: str, code: int) -> None:
    async with gateway() as h:
        refusal = error(await rm(h, version=version, capabilities={}))
        assert refusal.code == code
        assert refusal.message == (
            "this call needs its caller's approval, and the client cannot ask: it did not declare elicitation"
        )
        assert ran(h) == 0


async def test_other_tools_and_rules_without_approval_are_called_as_ever() -> None:
    async with gateway() as h:
        assert decoded(await rm(h, name="up__ls", capabilities={})) == {"content": []}
        assert counted(h, "caller", "used") == 0


@pytest.mark.parametrize("access", [BY_CALLER, BY_OPERATOR], ids=["caller", "operator"])
async def test_a_tool_whose_list_is_not_known_yet_needs_approval_all_the_same(access: dict[str, object]) -> None:
    up = FakeUpstream("up", tools={})
    up.lists[Kind.TOOLS] = [tool("rm")]
    up.answers["tools/call"] = lambda call: complete(content=[])
    async with house(up, access=access, sleep=anyio.sleep) as h:
        if access is BY_CALLER:
            client = FakeClient(answer=NO)
            outcome = await rm(h, version=LATEST_HANDSHAKE, client=client)
            assert len(client.asked) == 1
        else:
            async with waiting_for_an_operator(h) as outcomes:
                (waiting,) = h.gateway.feature(CallApprovals).waiting()
                assert h.gateway.feature(CallApprovals).decide(waiting.id, OLGA, approve=False) is None
            (outcome,) = outcomes
        assert failed_for(outcome) is Reason.APPROVAL_DENIED
        assert ran(h) == 0
        assert error(await rm(h, name="up__none")).message == "Unknown tool: up__none"


@pytest.mark.parametrize("access", [BY_CALLER, BY_OPERATOR], ids=["caller", "operator"])
@pytest.mark.parametrize("hooked", [False, True], ids=["no hook", "a hook after"])
async def test_r82_a_call_that_waits_for_a_list_while_a_reload_brings_the_first_rule_is_not_sent(
    access: dict[str, object], hooked: bool
) -> None:
    hook = {"url": "http://127.0.0.1:1/", "secret": "sixteen characters or more", "phase": "after"}
    before: dict[str, object] = {"hooks": [hook] if hooked else []}
    up = FakeUpstream("up", tools={})
    up.answers["tools/call"] = lambda call: complete(content=[])
    async with house(up, access=before, sleep=anyio.sleep) as h:

        def listed(call: Call) -> Outcome:
            h.gateway.reconfigure(settings_of({"up": {}}, {**before, **access}), dict(h.upstreams))
            return complete(tools=[tool("rm")])

        up.answers["tools/list"] = listed
        refusal = await rm(h)
        assert failed_for(refusal) is Reason.APPROVAL_WITHDRAWN
        assert error(refusal).data == raw({"approval": "withdrawn"})
        assert ran(h) == 0


# Never twice


async def test_r82_an_answer_that_is_replayed_runs_nothing() -> None:
    async with gateway() as h:
        asked = await paused(h)
        await rm(h, **retry(asked))
        assert "was used before" in error(await rm(h, **retry(asked))).message
        assert ran(h) == 1


async def test_r82_of_answers_that_race_one_runs_the_call() -> None:
    async with gateway() as h:
        asked = await paused(h)
        outcomes: list[Outcome] = []

        async def answer() -> None:
            outcomes.append(await rm(h, **retry(asked)))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(answer)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Complete", *["Failed"] * 4]
        assert ran(h) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"arguments": {"path": "/b"}},
        {"name": "up__ls"},
        {"principal": Principal("mallory")},
        {"arguments": {"path": "/a", "force": True}},
    ],
    ids=["another value", "another tool", "another caller", "one more argument"],
)
async def test_r82_an_approval_is_for_the_very_call_that_was_asked_about(changed: dict[str, Any]) -> None:
    async with gateway() as h:
        asked = await paused(h)
        assert "was given for another request" in error(await rm(h, **retry(asked), **changed)).message
        assert ran(h) == 0


async def test_r82_an_approval_that_comes_after_the_policy_changed_is_void() -> None:
    async with gateway() as h:
        asked = await paused(h)
        approvals = ApprovalSettings(timeout=299)
        access = h.settings.access.model_copy(update={"approvals": approvals})
        h.gateway.reconfigure(h.settings.model_copy(update={"access": access}), dict(h.upstreams))
        assert failed_for(await rm(h, **retry(asked))) is Reason.APPROVAL_WITHDRAWN
        assert ran(h) == 0


async def test_an_approval_of_a_tool_that_became_another_meanwhile_is_void() -> None:
    async with gateway() as h:
        asked = await paused(h)
        h["up"].list_changed(Kind.TOOLS, [tool("rm", description="Something else."), tool("ls")])
        await quiet()
        assert failed_for(await rm(h, **retry(asked))) is Reason.APPROVAL_WITHDRAWN
        assert ran(h) == 0


@dataclass
class SilentClient(FakeClient):
    """Never answers. `asking` is called once it is asked."""

    asking: Callable[[], None] = lambda: None

    async def ask(self, request: InputRequest) -> Raw:
        self.asking()
        await anyio.sleep_forever()
        raise AssertionError


@COMMANDED
async def test_r82_an_approval_that_nobody_gives_in_time_expires_and_a_late_answer_runs_nothing() -> None:
    access = {**BY_CALLER, "approvals": {"timeout": 50}}
    async with gateway(access, sleep=Time().sleep) as h:
        outcomes: list[Outcome] = []

        async def call() -> None:
            outcomes.append(await rm(h, version=LATEST_HANDSHAKE, client=SilentClient()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            asked = await paused(h)
            await commanded_loop().advance(49)
            assert outcomes == []
            await commanded_loop().advance(1)
            await quiet()
        assert failed_for(outcomes[0]) is Reason.APPROVAL_EXPIRED
        assert counted(h, "caller", "expired") == 2
        assert failed_for(await rm(h, **retry(asked))) is Reason.APPROVAL_EXPIRED
        assert ran(h) == 0


class RefusingClient(FakeClient):
    async def ask(self, request: InputRequest) -> Raw:
        raise McpError(INVALID_REQUEST, "gone")


async def test_a_client_that_is_gone_or_refuses_to_ask_withdraws_the_call() -> None:
    async with gateway() as h:
        outcome = await rm(h, version=LATEST_HANDSHAKE, client=RefusingClient())
        assert failed_for(outcome) is Reason.APPROVAL_WITHDRAWN
        with anyio.CancelScope() as scope:
            await rm(h, version=LATEST_HANDSHAKE, client=SilentClient(asking=scope.cancel))
        assert counted(h, "caller", "withdrawn") == 2
        assert ran(h) == 0


async def test_calls_that_wait_are_bounded_for_each_caller() -> None:
    async with gateway({**BY_CALLER, "approvals": {"max_waiting_per_principal": 1}}) as h:
        await paused(h)
        assert "too many calls wait for approval" in error(await rm(h)).message
        await paused(h, principal=OLGA)


# An upstream that asks for input itself


def asking_upstream() -> FakeUpstream:
    """Of the stateless era: asks for a name, and answers once it has one."""
    up = FakeUpstream("up", tools={})
    up.identity = type(up.identity)(Era.STATELESS, LATEST, up.identity.capabilities)

    def answer(call: Any) -> Outcome:
        if "inputResponses" in call.params:
            return complete(content=[], state=call.params.get("requestState"))
        question = InputRequest("elicitation/create", first_level({"message": "Name?", "requestedSchema": {}}))
        shown = {"resultType": "input_required", "inputRequests": {"name": {"method": question.method}}}
        return InputRequired({"name": question}, None, first_level(shown))

    up.answers["tools/call"] = answer
    return up


async def test_a_call_that_was_approved_goes_on_with_its_input_and_is_not_asked_about_again() -> None:
    async with gateway(up=asking_upstream()) as h:
        named = await rm(h, **retry(await paused(h)))
        assert isinstance(named, InputRequired)
        assert list(named.requests) == ["name"]
        answer = retry(named, {"action": "accept", "content": {"name": "Ada"}})
        assert isinstance(await rm(h, **answer), Complete)
        assert ran(h) == 2
        # The same input again is another call: it is asked about, and runs nothing by itself.
        again = await rm(h, **answer)
        assert isinstance(again, InputRequired)
        assert list(again.requests) != ["name"]
        assert ran(h) == 2


async def test_a_handshake_caller_approves_once_however_often_the_upstream_asks() -> None:
    async with gateway(up=asking_upstream()) as h:
        client = FakeClient(answer=YES)
        assert isinstance(await rm(h, version=LATEST_HANDSHAKE, client=client), Complete)
        assert len(client.asked) == 2
        assert ran(h) == 2


# Operators


@asynccontextmanager
async def waiting_for_an_operator(h: House, **call: Any) -> AsyncIterator[list[Outcome]]:
    outcomes: list[Outcome] = []

    async def make() -> None:
        outcomes.append(await rm(h, capabilities={}, **call))

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(make)
            while not h.gateway.feature(CallApprovals).waiting():
                await anyio.lowlevel.checkpoint()
            yield outcomes


@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_an_operator_approves_and_the_caller_is_asked_nothing(version: str) -> None:
    async with gateway(BY_OPERATOR) as h:
        client = FakeClient()
        async with waiting_for_an_operator(h, version=version, client=client) as outcomes:
            (waiting,) = h.gateway.feature(CallApprovals).waiting()
            assert (waiting.principal, waiting.upstream, waiting.name) == ("alice", "up", "up__rm")
            assert h.gateway.feature(CallApprovals).decide(waiting.id, OLGA, approve=True) is None
            assert h.gateway.feature(CallApprovals).decide(waiting.id, OLGA, approve=False) == NOT_WAITING
        assert isinstance(outcomes[0], Complete)
        assert client.asked == []
        assert counted(h, "operator", "used") == 1
        assert h.gateway.feature(CallApprovals).decide(waiting.id, OLGA, approve=True) == NOT_WAITING


async def test_an_operator_denies() -> None:
    async with gateway(BY_OPERATOR) as h:
        async with waiting_for_an_operator(h) as outcomes:
            (waiting,) = h.gateway.feature(CallApprovals).waiting()
            assert h.gateway.feature(CallApprovals).decide(waiting.id, OLGA, approve=False) is None
        assert failed_for(outcomes[0]) is Reason.APPROVAL_DENIED
        assert ran(h) == 0


async def test_nobody_approves_a_call_of_their_own() -> None:
    async with gateway(BY_OPERATOR) as h, waiting_for_an_operator(h) as outcomes:
        (waiting,) = h.gateway.feature(CallApprovals).waiting()
        assert h.gateway.feature(CallApprovals).decide(waiting.id, ALICE, approve=True) == OWN_CALL
        assert outcomes == []
        assert h.gateway.feature(CallApprovals).decide(waiting.id, OLGA, approve=False) is None


async def test_a_call_that_waits_for_its_caller_is_none_of_an_operators() -> None:
    async with gateway() as h:
        await paused(h)
        assert h.gateway.feature(CallApprovals).waiting() == []


# Rules


@pytest.mark.parametrize(
    ("access", "approver"),
    [
        (policy({"tools": ["rm"], "approve": "caller", "arguments": {"path": {"equals": "/a"}}}), "its caller"),
        (policy({"tools": ["rm"], "approve": "caller", "arguments": {"path": {"equals": "/b"}}}), None),
        (
            policy({"tools": ["rm"], "approve": "operator"}, staff={"allow": [{"tools": ["rm"], "approve": "caller"}]}),
            "its caller",
        ),
        (policy({"tools": ["rm"], "approve": "operator"}, staff={"allow": [{}]}), None),
        (policy({"tools": ["rm"], "approve": "operator"}), "an operator"),
        (
            {
                "policy": {
                    "default": "allow",
                    "roles": {"everyone": {"allow": [{"tools": ["rm"], "approve": "caller"}]}},
                }
            },
            "its caller",
        ),
    ],
    ids=["arguments match", "arguments differ", "least of roles", "a role without", "first of a role", "default allow"],
)
async def test_who_approves_is_the_first_rule_of_a_role_and_the_least_of_several(
    access: dict[str, object], approver: str | None
) -> None:
    async with gateway(access) as h:
        caller = Caller(Principal("alice", frozenset({"staff"})), LATEST)
        found = h.gateway.explain(caller, Kind.TOOLS, "up__rm", {"path": raw("/a")})
        assert found.allowed
        why = found.steps[-1].why
        assert (f"once {approver} approves each call" in why) if approver else ("approves" not in why)


async def test_a_caller_that_is_denied_is_asked_nothing() -> None:
    access = policy({"tools": ["rm"], "approve": "caller"}, staff={"deny": [{"tools": ["rm"]}]})
    async with gateway(access) as h:
        outcome = await rm(h, principal=Principal("alice", frozenset({"staff"})))
        assert error(outcome).message == "Unknown tool: up__rm"


async def test_anonymous_operators_and_callers_on_loopback_are_told_apart_by_their_channels() -> None:
    async with gateway(BY_OPERATOR) as h:
        async with waiting_for_an_operator(h, principal=ANONYMOUS) as outcomes:
            (waiting,) = h.gateway.feature(CallApprovals).waiting()
            assert h.gateway.feature(CallApprovals).decide(waiting.id, ANONYMOUS, approve=True) is None
        assert isinstance(outcomes[0], Complete)


# Operators, and callers of the stateless era


HELD_BRIEFLY: dict[str, Any] = {"bridge": {"hold": 0.01}}


async def carried_on(h: House, asked: InputRequired, **params: Any) -> Outcome:
    """The outcome of a call that is retried, as a client does it, for as long as the gateway says so."""
    outcome: Outcome = asked
    while isinstance(outcome, InputRequired):
        outcome = await rm(h, requestState=outcome.state, **params)
    return outcome


async def told_to_retry(h: House, **params: Any) -> InputRequired:
    """The answer to a call that an operator has still to decide."""
    outcome = await paused(h, capabilities={}, **params)
    assert outcome.requests == {}
    assert "inputRequests" not in outcome.result
    assert outcome.state is not None
    return outcome


async def decided(h: House, *, approve: bool) -> None:
    (waiting,) = h.gateway.feature(CallApprovals).waiting()
    assert h.gateway.feature(CallApprovals).decide(waiting.id, OLGA, approve=approve) is None
    await quiet()


async def test_a_stateless_caller_is_told_to_retry_while_an_operator_decides() -> None:
    async with gateway(BY_OPERATOR, **HELD_BRIEFLY) as h:
        first = await told_to_retry(h)
        second = await told_to_retry(h, requestState=first.state)
        assert second.state != first.state
        assert len(h.gateway.feature(CallApprovals).waiting()) == 1
        await decided(h, approve=True)
        assert ran(h) == 0, "nothing is sent while no request of the client is there"
        assert isinstance(await carried_on(h, second), Complete)
        assert ran(h) == 1
        for used in (first, second):
            assert "was used before" in error(await rm(h, requestState=used.state)).message
        assert ran(h) == 1
        assert counted(h, "operator", "used") == 1


async def test_a_stateless_caller_that_was_denied_meanwhile_is_told_with_its_retry() -> None:
    async with gateway(BY_OPERATOR, **HELD_BRIEFLY) as h:
        asked = await told_to_retry(h)
        await decided(h, approve=False)
        assert failed_for(await carried_on(h, asked)) is Reason.APPROVAL_DENIED
        assert ran(h) == 0


@COMMANDED
async def test_r82_an_approval_is_kept_for_a_client_whose_next_retry_comes_after_the_time() -> None:
    async with gateway({**BY_OPERATOR, "approvals": {"timeout": 50}}, bridge={"hold": 5}, sleep=Time().sleep) as h:
        told: list[InputRequired] = []

        async def call() -> None:
            told.append(await told_to_retry(h))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            for seconds in (0, 5):
                await commanded_loop().advance(seconds)
        (asked,) = told
        await decided(h, approve=True)
        await commanded_loop().advance(100)
        assert ran(h) == 0, "nothing is sent while no request of the client is there"
        assert isinstance(await carried_on(h, asked), Complete)
        assert ran(h) == 1
        assert counted(h, "operator", "used") == 1


async def test_a_call_that_was_approved_and_whose_client_sends_no_retry_is_not_sent() -> None:
    retries_are_over = anyio.Event()

    async def sleep(seconds: float) -> None:
        await retries_are_over.wait()
        await anyio.sleep(0.001)

    async with gateway(BY_OPERATOR, bridge={"hold": 0.01, "park_ttl": 0.01}, sleep=sleep) as h:
        await told_to_retry(h)
        await decided(h, approve=True)
        retries_are_over.set()
        with anyio.fail_after(GUARD):
            while not counted(h, "operator", "withdrawn"):
                await anyio.lowlevel.checkpoint()
        assert ran(h) == 0


@COMMANDED
@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_r82_a_decision_that_counts_is_kept_though_the_time_is_over_in_the_same_moment(version: str) -> None:
    access = {**BY_OPERATOR, "approvals": {"timeout": 50}}
    async with gateway(access, bridge={"hold": 60}, sleep=Time().sleep) as h:
        async with waiting_for_an_operator(h, version=version) as outcomes:
            (waiting,) = h.gateway.feature(CallApprovals).waiting()
            said: list[str | None] = []
            loop = commanded_loop()
            loop.call_at(
                loop.time() + 50,
                lambda: said.append(h.gateway.feature(CallApprovals).decide(waiting.id, OLGA, approve=True)),
            )
            await loop.advance(50)
        assert said == [None]
        assert isinstance(outcomes[0], Complete)
        assert ran(h) == 1


async def test_a_stateless_caller_that_sends_no_retry_withdraws_its_call() -> None:
    async with gateway(BY_OPERATOR, bridge={"hold": 0.01, "park_ttl": 0.05}) as h:
        await told_to_retry(h)
        with anyio.fail_after(GUARD):
            while not counted(h, "operator", "withdrawn"):
                await anyio.lowlevel.checkpoint()
        assert h.gateway.feature(CallApprovals).waiting() == []
        assert ran(h) == 0


@pytest.mark.parametrize(
    "changed",
    [{"arguments": {"path": "/b"}}, {"name": "up__ls"}, {"principal": Principal("mallory")}],
    ids=["another value", "another tool", "another caller"],
)
async def test_r82_an_operators_approval_is_for_the_very_call_that_waits(changed: dict[str, Any]) -> None:
    async with gateway(BY_OPERATOR, **HELD_BRIEFLY) as h:
        asked = await told_to_retry(h)
        await decided(h, approve=True)
        assert "was given for another request" in error(await carried_on(h, asked, **changed)).message
        assert ran(h) == 0


async def test_an_operators_approval_is_void_once_the_policy_is_another() -> None:
    async with gateway(BY_OPERATOR, **HELD_BRIEFLY) as h:
        asked = await told_to_retry(h)
        await decided(h, approve=True)
        access = h.settings.access.model_copy(update={"approvals": ApprovalSettings(timeout=299)})
        h.gateway.reconfigure(h.settings.model_copy(update={"access": access}), dict(h.upstreams))
        assert failed_for(await carried_on(h, asked)) is Reason.APPROVAL_WITHDRAWN
        assert ran(h) == 0


async def test_an_approved_call_that_a_reload_made_void_has_no_place_among_those_that_wait() -> None:
    async with gateway(BY_OPERATOR, **HELD_BRIEFLY) as h:
        asked = await told_to_retry(h)
        await decided(h, approve=True)
        assert h.metrics.registry.get_sample_value("mcproxy_approvals_waiting") == 1
        access = h.settings.access.model_copy(update={"approvals": ApprovalSettings(timeout=299)})
        h.gateway.reconfigure(h.settings.model_copy(update={"access": access}), dict(h.upstreams))
        with anyio.fail_after(GUARD):
            while not counted(h, "operator", "withdrawn"):
                await anyio.lowlevel.checkpoint()
        assert h.metrics.registry.get_sample_value("mcproxy_approvals_waiting") == 0
        assert failed_for(await carried_on(h, asked)) is Reason.APPROVAL_WITHDRAWN
        assert ran(h) == 0


async def test_of_retries_that_race_one_runs_the_call_that_an_operator_approved() -> None:
    async with gateway(BY_OPERATOR, **HELD_BRIEFLY) as h:
        asked = await told_to_retry(h)
        await decided(h, approve=True)
        outcomes: list[Outcome] = []

        async def retry_once() -> None:
            outcomes.append(await carried_on(h, asked))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(retry_once)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Complete", *["Failed"] * 4]
        assert ran(h) == 1


async def test_who_has_the_link_of_a_call_decides_it_once() -> None:
    async with gateway(BY_OPERATOR) as h:
        async with waiting_for_an_operator(h) as outcomes:
            (waiting,) = h.gateway.feature(CallApprovals).waiting()
            assert h.gateway.feature(CallApprovals).decide(waiting.id, None, approve=True) is None
            assert h.gateway.feature(CallApprovals).decide(waiting.id, None, approve=False) == NOT_WAITING
            assert h.gateway.feature(CallApprovals).waiting() == []
        assert isinstance(outcomes[0], Complete)
        assert ran(h) == 1


async def test_a_decision_on_a_call_that_a_reload_made_void_says_so_and_its_caller_is_told_at_once() -> None:
    async with gateway(BY_OPERATOR) as h:
        async with waiting_for_an_operator(h) as outcomes:
            (waiting,) = h.gateway.feature(CallApprovals).waiting()
            access = h.settings.access.model_copy(update={"approvals": ApprovalSettings(timeout=299)})
            h.gateway.reconfigure(h.settings.model_copy(update={"access": access}), dict(h.upstreams))
            assert h.gateway.feature(CallApprovals).waiting() == []
            assert h.gateway.feature(CallApprovals).decide(waiting.id, OLGA, approve=True) == VOID
        assert failed_for(outcomes[0]) is Reason.APPROVAL_WITHDRAWN
        assert ran(h) == 0
        assert counted(h, "operator", "withdrawn") == 1


async def test_a_decision_on_a_call_whose_upstream_is_gone_says_that_it_is_void() -> None:
    async with gateway(BY_OPERATOR) as h:
        async with waiting_for_an_operator(h) as outcomes:
            (waiting,) = h.gateway.feature(CallApprovals).waiting()
            h.gateway.reconfigure(h.settings.model_copy(update={"upstreams": ()}), {})
            assert h.gateway.feature(CallApprovals).decide(waiting.id, OLGA, approve=True) == VOID
            assert h.gateway.feature(CallApprovals).decide(waiting.id, OLGA, approve=True) == VOID
        assert failed_for(outcomes[0]) is Reason.APPROVAL_WITHDRAWN
        assert ran(h) == 0


# The webhook, and the record of who decided


class Recording:
    """An audit log that keeps what operators decided."""

    def __init__(self, records: list[OperatorRecord]) -> None:
        self.note = records.append


@dataclass
class FakeWebhook:
    """Answers as it is told to; where it has no answer it fails."""

    answer: dict[str, object] | None
    told: list[dict[str, Any]] = field(default_factory=list)
    is_retired: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(self, payload: Params, id: str | None = None) -> Params | None:
        self.told.append({"event": id, **decoded(payload)})
        if self.answer is None:
            raise WebhookFailed("it is away", again=True)
        return first_level(self.answer)

    async def retire(self) -> None:
        self.is_retired.set()

    async def aclose(self) -> None:
        return


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ({"decision": "allow"}, "approve"),
        ({"decision": "deny"}, "deny"),
        ({"decision": 7}, None),
        ({}, None),
        (None, None),
    ],
)
async def test_the_webhook_decides_or_leaves_it_to_operators_and_decisions_are_recorded(
    answer: dict[str, object] | None, action: str | None
) -> None:
    webhook, recorded = FakeWebhook(answer), list[OperatorRecord]()
    async with gateway(BY_OPERATOR) as h:
        core = replace(h.gateway._core, audit=Recording(recorded))
        approvals = CallApprovals(core, lambda settings: webhook, lambda: 7.0)
        approvals.links.base = "https://ops"

        async def send(call: Call) -> Outcome:
            return complete(content=[])

        caller = Caller(ALICE, LATEST_HANDSHAKE)
        call = Call(row_of("tools/call"), first_level({"name": "up__rm", "arguments": {}}), caller, FakeClient())
        outcomes = list[Outcome]()

        async def make() -> None:
            outcomes.append(await approvals.approved(send)(call))

        with anyio.fail_after(GUARD):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(make)
                while not webhook.told:
                    await anyio.lowlevel.checkpoint()
                await quiet()
                if action is None:
                    (waiting,) = approvals.waiting()
                    link = str(webhook.told[0]["link"])
                    assert approvals.links.opened(link.removeprefix("https://ops/approvals/")) == waiting.id
                    assert approvals.decide(waiting.id, OLGA, approve=True) is None
    assert isinstance(outcomes[0], Failed if action == "deny" else Complete)
    by = "olga" if action is None else "the webhook"
    assert recorded == [OperatorRecord(7.0, by, action or "approve", "up/rm")]


async def test_a_webhook_that_stays_is_kept_over_a_reload_and_another_is_made() -> None:
    async with gateway(BY_OPERATOR) as h:

        def made(timeout: float, port: int) -> CallApprovals:
            webhook = {"url": f"http://127.0.0.1:{port}/", "secret": "sixteen characters or more"}
            section = ApprovalSettings.model_validate({"timeout": timeout, "webhook": webhook})
            access = h.settings.access.model_copy(update={"approvals": section})
            settings = h.settings.model_copy(update={"access": access})
            return CallApprovals(replace(h.gateway._core, settings=settings), lambda settings: FakeWebhook(None))

        first, second, third = made(1, 1), made(2, 1), made(2, 2)
        second.adopt(first)
        assert list(second.resources()) == list(first.resources())
        third.adopt(second)
        assert list(third.resources()) != list(second.resources())


WEBHOOK: dict[str, object] = {"webhook": {"url": "http://127.0.0.1:1/", "secret": "sixteen characters or more"}}


@pytest.mark.parametrize("ending", ["decided", "reloaded", "hung up"])
async def test_no_repeat_outlives_the_call_or_the_configuration(ending: str) -> None:
    """The pauses between attempts last until they are ended from outside."""
    webhook, pauses, ended = FakeWebhook(None), list[float](), anyio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with gateway({**BY_OPERATOR, "approvals": WEBHOOK}) as h:
        core = replace(h.gateway._core, sleep=pause)
        approvals = CallApprovals(core, lambda settings: webhook)

        async def send(call: Call) -> Outcome:
            return complete(content=[])

        caller = Caller(ALICE, LATEST_HANDSHAKE)
        call = Call(row_of("tools/call"), first_level({"name": "up__rm", "arguments": {}}), caller, FakeClient())

        async def make() -> None:
            await approvals.approved(send)(call)

        with anyio.fail_after(GUARD):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(make)
                while not pauses:
                    await anyio.lowlevel.checkpoint()
                (waiting,) = approvals.waiting()
                assert [told["event"] for told in webhook.told] == [f"msg_{waiting.id}"]
                if ending == "hung up":
                    tasks.cancel_scope.cancel()
                elif ending == "reloaded":
                    CallApprovals(core, lambda settings: webhook).adopt(approvals)
                else:
                    assert approvals.decide(waiting.id, OLGA, approve=True) is None
        assert ended.is_set()
        assert len(webhook.told) == 1
