"""The twin of `mcproxy.gateway.input.bridge`: the four pairs of eras, and the states that stateless clients carry."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import anyio
import pytest
from mcp_types import InputRequiredResult, methods

from mcproxy import settings
from mcproxy.call.calls import Call, Complete, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError, Reason
from mcproxy.gateway.input.bridge import InputBridge
from mcproxy.gateway.input.parking import MAX_GATHERED
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    URL_ELICITATION_REQUIRED,
    first_level,
    parse_text,
)
from mcproxy.sealing import Sealer
from mcproxy.telemetry.metrics import Metrics
from tests.fakes.bridging import (
    ACCEPTED,
    ROOTS,
    FakeResolver,
    Tool,
    answers_in,
    answers_to,
    asking,
    asking_together,
    bridged,
    elicitation,
    required,
    roots,
    sampling,
)
from tests.fakes.upstream import FakeClient, complete, decoded, error, failed

pytestmark = pytest.mark.anyio


async def echo(call: Call) -> Outcome:
    return complete(answers=[])


async def relaying(call: Call) -> Outcome:
    """A stateless upstream that asks once; its result holds what the retry brought."""
    if "requestState" not in call.params:
        return required({"who": elicitation()}, "the upstream's own", extra=1)
    return complete(state=parse_text(call.params["requestState"]), answers=decoded(call.params)["inputResponses"])


# A client and an upstream of one era.


async def test_r58_two_of_the_handshake_era_are_left_alone() -> None:
    tool, client = Tool(asking(roots())), FakeClient(answer=ROOTS)
    async with bridged(tool) as world:
        outcome = await world.call(version=LATEST_HANDSHAKE, client=client)
    assert answers_in(outcome) == [ROOTS]
    assert tool.calls[0].client is client


async def test_r58_two_of_the_stateless_era_see_each_others_requests_and_answers() -> None:
    tool = Tool(relaying)
    async with bridged(tool) as world:
        paused = await world.call(arguments={"a": 1})
        assert isinstance(paused, InputRequired)
        outcome = await world.retry(paused, {"who": ACCEPTED}, arguments={"a": 1})
    assert decoded(outcome) == {"state": "the upstream's own", "answers": {"who": ACCEPTED}}
    assert decoded(tool.calls[1].params["arguments"]) == {"a": 1}
    assert world.parked == 0


async def test_an_upstreams_state_is_sealed_and_the_rest_of_its_result_as_it_was() -> None:
    async with bridged(relaying) as world:
        paused = await world.call()
    assert isinstance(paused, InputRequired)
    assert paused.state is not None
    assert "own" not in paused.state
    theirs = decoded(required({"who": elicitation()}, "the upstream's own", extra=1))
    assert decoded(paused) == {**theirs, "requestState": paused.state}


async def test_an_upstream_without_a_state_gets_none() -> None:
    asked = required({"who": elicitation()})
    tool = Tool(relaying)
    tool.script = lambda call: _first_of(call, asked)
    async with bridged(tool) as world:
        paused = await world.call()
        assert paused is asked
        await world.call(inputResponses={"who": ACCEPTED})
    assert "requestState" not in tool.calls[1].params
    assert decoded(tool.calls[1].params["inputResponses"]) == {"who": ACCEPTED}


async def _first_of(call: Call, outcome: Outcome) -> Outcome:
    return complete() if "inputResponses" in call.params else outcome


async def test_a_relayed_state_outlives_the_gateway_that_sealed_it() -> None:
    async with bridged(relaying) as first:
        paused = await first.call()
    assert isinstance(paused, InputRequired)
    async with bridged(relaying) as second:
        assert isinstance(await second.retry(paused, {"who": ACCEPTED}), Complete)


@pytest.mark.parametrize(
    "change",
    [{"principal": "eve"}, {"endpoint": "up"}, {"name": "other"}, {"arguments": {"a": 1}}, {"method": "prompts/get"}],
)
async def test_a_relayed_state_is_good_for_its_own_request_alone(change: dict[str, object]) -> None:
    tool = Tool(relaying)
    async with bridged(tool) as world:
        paused = await world.call()
        assert isinstance(paused, InputRequired)
        refusal = error(await world.retry(paused, {"who": ACCEPTED}, **change))
    assert refusal.code == INVALID_PARAMS
    assert "another request" in refusal.message
    assert tool.runs == 1


async def test_a_relayed_state_expires() -> None:
    tool = Tool(relaying)
    async with bridged(tool, park_ttl=10) as world:
        paused = await world.call()
        assert isinstance(paused, InputRequired)
        await world.time.go_by(10)
        assert "expired" in error(await world.retry(paused, {"who": ACCEPTED})).message
    assert tool.runs == 1


async def test_an_upstream_never_gets_the_state_of_another() -> None:
    tool = Tool(relaying)
    async with bridged(tool) as world:
        paused = await world.call()
        assert isinstance(paused, InputRequired)
        world.resolver.upstream = "another"
        refusal = error(await world.retry(paused, {"who": ACCEPTED}))
    assert refusal.code == INVALID_PARAMS
    assert "another server" in refusal.message
    assert tool.runs == 1


async def test_an_upstreams_bare_state_is_no_state_of_ours() -> None:
    tool = Tool(relaying)
    async with bridged(tool) as world:
        refusal = error(await world.call(requestState="the upstream's own"))
    assert refusal.code == INVALID_PARAMS
    assert tool.runs == 0


async def test_a_client_is_never_relayed_what_it_did_not_declare() -> None:
    asked = required({"a": elicitation(mode="url"), "b": sampling(), "c": roots()}, "s")
    async with bridged(lambda call: _first_of(call, asked)) as world:
        refusal = error(await world.call(capabilities={"roots": {}, "elicitation": {}}))
    assert refusal.code == MISSING_CLIENT_CAPABILITY
    assert refusal.data is not None
    assert decoded(refusal.data) == {"requiredCapabilities": {"elicitation": {"url": {}}, "sampling": {}}}


# A stateless client, an upstream of the handshake era.


async def test_r58_a_stateless_client_answers_what_an_older_upstream_asks() -> None:
    tool = Tool(asking(elicitation()))
    async with bridged(tool) as world:
        paused = await world.asked()
        assert list(paused.requests.values()) == [elicitation()]
        assert answers_in(await world.retry(paused, answers_to(paused))) == [ACCEPTED]
    assert tool.runs == 1


@pytest.mark.parametrize("number", [3, MAX_GATHERED])
async def test_questions_that_follow_each_other_closely_go_into_one_answer(number: int) -> None:
    async def script(call: Call) -> Outcome:
        async def ask(index: int) -> None:
            for _ in range(index):
                await world.time.sleep(world.limits.gather / 2)
            await call.client.ask(elicitation())

        async with anyio.create_task_group() as tasks:
            for index in range(number):
                tasks.start_soon(ask, index)
        return complete()

    async with bridged(script) as world:
        paused = await world.asked()
        assert len(paused.requests) == number
        assert isinstance(await world.retry(paused, answers_to(paused)), Complete)


async def test_a_question_is_valid_on_the_wire() -> None:
    async with bridged(asking_together(elicitation(), sampling(), roots())) as world:
        paused = await world.asked()
    result = methods.parse_server_result("tools/call", LATEST, decoded(paused))
    assert isinstance(result, InputRequiredResult)


@pytest.mark.parametrize("method", ["tools/call", "resources/read", "prompts/get"])
async def test_whatever_may_ask_is_bridged(method: str) -> None:
    async with bridged(asking(roots())) as world:
        paused = await world.asked(method=method)
        assert answers_in(await world.retry(paused, answers_to(paused), method=method)) == [ROOTS]


async def test_what_may_not_ask_goes_straight_through() -> None:
    tool, client = Tool(echo), FakeClient()
    async with bridged(tool) as world:
        await world.call(method="completion/complete", client=client, requestState="anything")
        await world.call(method="tools/list", client=client)
    assert [call.client for call in tool.calls] == [client, client]
    assert parse_text(tool.calls[0].params["requestState"]) == "anything"


async def test_an_upstream_that_asks_nothing_is_not_noticed() -> None:
    async with bridged(echo) as world:
        assert answers_in(await world.call()) == []
    assert world.parked == 0


async def test_a_call_that_crashes_harms_no_other() -> None:
    async def crash(call: Call) -> Outcome:
        if parse_text(call.params["name"]) == "crash":
            raise ZeroDivisionError
        return await asking(roots())(call)

    async with bridged(crash) as world:
        paused = await world.asked()
        assert error(await world.call(name="crash")).code == INTERNAL_ERROR
        assert answers_in(await world.retry(paused, answers_to(paused))) == [ROOTS]


class Edge(FakeClient):
    """The way back of a stateless client: results alone."""

    async def ask(self, request: InputRequest) -> NoReturn:
        raise McpError(INVALID_REQUEST, "no way to ask")


async def test_while_it_does_not_run_calls_go_straight_through() -> None:
    async with bridged(echo) as running:
        bridge = InputBridge(settings.BridgeSettings(), Sealer(b"secret"), FakeResolver(), Metrics())
        idle = replace(running, handler=bridge.bridged(echo))
        assert answers_in(await idle.call()) == []
        idle = replace(running, handler=bridge.bridged(asking(roots())))
        with pytest.raises(McpError, match="no way to ask"):
            await idle.call(client=Edge())


async def test_a_call_that_is_known_to_ask_by_results_alone_stays_in_the_task_of_its_request() -> None:
    tasks = list[int]()

    async def noting(call: Call) -> Outcome:
        tasks.append(anyio.get_current_task().id)
        return await relaying(call)

    async with bridged(noting) as world:
        world.resolver.is_stateless = True
        paused = await world.call()
        assert isinstance(paused, InputRequired)
        assert decoded(await world.retry(paused, {"who": ACCEPTED}))["answers"] == {"who": ACCEPTED}
    assert tasks == [anyio.get_current_task().id] * 2


async def test_an_upstream_that_comes_back_in_the_other_era_under_a_call_is_told_that_it_cannot_ask() -> None:
    tool = Tool(asking(roots()))
    async with bridged(tool) as world:
        world.resolver.is_stateless = True
        assert error(await world.call(client=Edge())).message == "no way to ask"
        world.resolver.is_stateless = False
        paused = await world.asked()
        assert answers_in(await world.retry(paused, answers_to(paused))) == [ROOTS]
    assert (tool.runs, world.parked) == (2, 0)


# What a client did not declare.


async def carry_on(call: Call) -> Outcome:
    """Does without what it may not ask for."""
    try:
        await call.client.ask(elicitation())
    except McpError as refusal:
        return complete(refused=refusal.code)
    return complete(refused=None)


async def test_r61_an_upstream_hears_at_once_what_the_client_cannot_answer_and_may_carry_on() -> None:
    async with bridged(carry_on) as world:
        assert decoded(await world.call(capabilities={"roots": {}})) == {"refused": METHOD_NOT_FOUND}
    assert world.parked == 0


def _giving_up(*questions: InputRequest, outcome: Outcome) -> Tool:
    async def script(call: Call) -> Outcome:
        for question in questions:
            try:
                await call.client.ask(question)
            except McpError:
                continue
        return outcome

    return Tool(script)


async def test_a_call_that_fails_for_it_says_what_it_needs() -> None:
    tool = _giving_up(elicitation(mode="url"), sampling(), outcome=failed("no elicitation", METHOD_NOT_FOUND))
    async with bridged(tool) as world:
        refusal = error(await world.call(capabilities={"elicitation": {"form": {}}}))
    assert refusal.code == MISSING_CLIENT_CAPABILITY
    assert refusal.data is not None
    assert decoded(refusal.data) == {"requiredCapabilities": {"elicitation": {"url": {}}, "sampling": {}}}
    assert "elicitation.url, sampling" in refusal.message


async def test_a_tool_that_fails_for_it_says_what_it_needs_too() -> None:
    # SDKs make an `isError` of what a tool cannot handle: the refusal of its question, too.
    outcome = Complete(first_level({"content": [], "isError": True}), is_error=True)
    async with bridged(_giving_up(roots(), outcome=outcome)) as world:
        refusal = error(await world.call(capabilities={}))
    assert refusal.code == MISSING_CLIENT_CAPABILITY
    assert refusal.data is not None
    assert decoded(refusal.data) == {"requiredCapabilities": {"roots": {}}}


async def test_a_tool_that_fails_for_another_reason_says_so_in_its_own_words() -> None:
    outcome = Complete(first_level({"content": [], "isError": True}), is_error=True)
    async with bridged(_giving_up(outcome=outcome)) as world:
        assert await world.call(capabilities={}) is outcome


async def test_a_lost_upstream_is_told_as_that_whatever_it_was_refused() -> None:
    lost = failed("upstream 'up': gone", reason=Reason.UNAVAILABLE)
    async with bridged(_giving_up(roots(), outcome=lost)) as world:
        assert await world.call(capabilities={}) is lost


async def test_a_crash_of_ours_is_told_as_that_whatever_was_refused() -> None:
    async def crash(call: Call) -> Outcome:
        await carry_on(call)
        raise ZeroDivisionError

    async with bridged(crash) as world:
        assert error(await world.call(capabilities={})).code == INTERNAL_ERROR


# An error that says which URLs to visit first.

VISIT: dict[str, object] = {"mode": "url", "elicitationId": "e", "url": "https://up.example/c", "message": "Connect"}
TO_VISIT = failed("connect first", URL_ELICITATION_REQUIRED, data={"elicitations": [VISIT]})


async def connecting(call: Call) -> Outcome:
    """A tool of 2025-11-25 that works once its user has visited a page."""
    return complete(done=True) if "inputResponses" in call.params else TO_VISIT


async def test_r58_urls_to_visit_first_are_a_request_for_input() -> None:
    async with bridged(connecting) as world:
        paused = await world.call()
        assert isinstance(paused, InputRequired)
        asked = {"1": {"method": "elicitation/create", "params": VISIT}}
        assert decoded(paused) == {"resultType": "input_required", "inputRequests": asked}
        InputRequiredResult.model_validate(decoded(paused))
        assert decoded(await world.call(inputResponses={"1": {"action": "accept"}})) == {"done": True}
    assert world.parked == 0


async def test_r58_a_client_that_cannot_visit_urls_is_told_what_it_takes() -> None:
    async with bridged(connecting) as world:
        refusal = error(await world.call(capabilities={"elicitation": {}}))
    assert refusal.code == MISSING_CLIENT_CAPABILITY
    assert refusal.data is not None
    assert decoded(refusal.data) == {"requiredCapabilities": {"elicitation": {"url": {}}}}


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_r58_a_client_that_declined_a_visit_is_not_asked_again(action: str) -> None:
    async with bridged(Tool(lambda call: _given(TO_VISIT))) as world:
        assert await world.call(inputResponses={"1": {"action": action}}) is TO_VISIT


async def test_r58_a_client_of_the_handshake_era_gets_that_error_itself() -> None:
    async with bridged(connecting) as world:
        assert await world.call(version=LATEST_HANDSHAKE) is TO_VISIT


@pytest.mark.parametrize(
    "data",
    [None, {}, {"elicitations": []}, {"elicitations": [1]}, {"elicitations": [{**VISIT, "mode": "form"}]}],
)
async def test_r58_such_an_error_that_names_no_url_passes(data: object) -> None:
    theirs = failed("connect first", URL_ELICITATION_REQUIRED, data=data)
    async with bridged(Tool(lambda call: _given(theirs))) as world:
        assert await world.call() is theirs


async def _given(outcome: Outcome) -> Outcome:
    return outcome
