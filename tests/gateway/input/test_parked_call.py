"""The twin of `mcproxy.gateway.input.parked_call`: what one parked call hears and says."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import anyio
import pytest
from anyio.abc import TaskGroup

from mcproxy.call.calls import Call, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.gateway.input.parked_call import TRANSITIONS, ParkedCall, ParkedCallEvent, ParkedCallState
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Params, raw
from mcproxy.protocol.methods import LOG_MESSAGE, PROGRESS, row_of
from mcproxy.settings import BridgeSettings
from tests.fakes.bridging import (
    ACCEPTED,
    ROOTS,
    SAMPLED,
    Tool,
    World,
    answers_in,
    answers_to,
    asking,
    asking_together,
    bridged,
    elicitation,
    pausing,
    roots,
    sampling,
)
from tests.fakes.upstream import FakeClient, complete, decoded, error, quiet
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def progress(step: int) -> tuple[str, Params]:
    return PROGRESS, {"progress": raw(step)}


async def test_what_an_upstream_asks_at_once_is_asked_in_one_answer() -> None:
    questions = (elicitation("One?"), sampling(), roots(), elicitation("Two?"))
    tool = Tool(asking_together(*questions))
    async with bridged(tool) as world:
        paused = await world.asked()
        assert list(paused.requests.values()) == list(questions)
        assert answers_in(await world.retry(paused, answers_to(paused))) == [ACCEPTED, SAMPLED, ROOTS, ACCEPTED]
    assert tool.runs == 1


async def test_what_an_upstream_asks_bit_by_bit_is_asked_in_rounds() -> None:
    tool = Tool(asking(elicitation(), sampling(), roots()))
    async with bridged(tool) as world:
        outcome: Outcome = await world.asked()
        states, keys = set[str | None](), set[str]()
        for request in (elicitation(), sampling(), roots()):
            assert isinstance(outcome, InputRequired)
            assert list(outcome.requests.values()) == [request]
            states.add(outcome.state)
            keys.update(outcome.requests)
            outcome = await world.retry(outcome, answers_to(outcome))
        assert answers_in(outcome) == [ACCEPTED, SAMPLED, ROOTS]
    assert len(states) == 3
    assert len(keys) == 3
    assert tool.runs == 1


async def test_what_is_not_answered_is_asked_again() -> None:
    tool = Tool(asking_together(elicitation(), roots()))
    async with bridged(tool) as world:
        paused = await world.asked()
        answers = answers_to(paused)
        first, second = paused.requests
        again = await world.retry(paused, {first: answers[first], "unheard of": 7})
        assert isinstance(again, InputRequired)
        assert again.requests == {second: paused.requests[second]}
        assert answers_in(await world.retry(again, {second: answers[second]})) == [ACCEPTED, ROOTS]
    assert tool.runs == 1


async def test_a_retry_without_answers_is_asked_the_same() -> None:
    async with bridged(asking(roots())) as world:
        paused = await world.asked()
        again = await world.retry(paused)
        assert isinstance(again, InputRequired)
        assert again.requests == paused.requests
        assert again.state != paused.state
        assert answers_in(await world.retry(again, answers_to(again))) == [ROOTS]


@pytest.mark.parametrize(
    "answers",
    [[], "x", 7, {"1": None}, {"1": {"action": "perhaps"}}, {"1": {}}, {"1": [ACCEPTED]}],
)
async def test_a_malformed_answer_is_refused_and_wakes_nothing(answers: object) -> None:
    tool = Tool(asking(elicitation()))
    async with bridged(tool) as world:
        paused = await world.asked()
        refusal = error(await world.call(requestState=paused.state, inputResponses=answers))
        assert refusal.code == INVALID_PARAMS
        assert "inputResponses" in refusal.message
        assert tool.in_flight == 1
        assert answers_in(await world.retry(paused, answers_to(paused))) == [ACCEPTED]


async def test_progress_and_log_messages_reach_whichever_request_is_there() -> None:
    early, late, between = FakeClient(), FakeClient(), anyio.Event()
    log = (LOG_MESSAGE, {"level": raw("info"), "data": raw("x")})

    async def script(call: Call) -> Outcome:
        async def meanwhile() -> None:
            await between.wait()
            call.client.notify(*progress(2))
            call.client.notify(*log)

        call.client.notify(*progress(1))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(meanwhile)
            await call.client.ask(roots())
        call.client.notify(*progress(3))
        return complete()

    async with bridged(script) as world:
        paused = await world.asked(client=early)
        between.set()
        await quiet()
        assert early.notified == [progress(1)]
        await world.retry(paused, answers_to(paused), client=late)
    assert early.notified == [progress(1)]
    assert late.notified == [progress(2), log, progress(3)]


async def test_of_many_messages_the_last_are_kept() -> None:
    client, between = FakeClient(), anyio.Event()

    async def script(call: Call) -> Outcome:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chatter, call)
            await call.client.ask(roots())
        return complete()

    async def chatter(call: Call) -> None:
        await between.wait()
        for step in range(1000):
            call.client.notify(*progress(step))

    async with bridged(script, max_kept_messages=3) as world:
        paused = await world.asked()
        between.set()
        await quiet()
        await world.retry(paused, answers_to(paused), client=client)
    assert client.notified == [progress(997), progress(998), progress(999)]


async def test_of_large_messages_no_more_is_kept_than_may_be() -> None:
    client, between = FakeClient(), anyio.Event()
    large = raw("x" * 400)

    async def script(call: Call) -> Outcome:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chatter, call)
            await call.client.ask(roots())
        return complete()

    async def chatter(call: Call) -> None:
        await between.wait()
        for step in range(10):
            call.client.notify(LOG_MESSAGE, {"step": raw(step), "data": large})

    async with bridged(script, max_kept_bytes=1000) as world:
        paused = await world.asked()
        between.set()
        await quiet()
        await world.retry(paused, answers_to(paused), client=client)
    assert [params["step"] for _, params in client.notified] == [raw(8), raw(9)]


async def refusals(call: Call, *questions: InputRequest) -> list[int | None]:
    """What each of the questions, asked at once, is refused with."""
    codes: dict[int, int | None] = {}

    async def ask(index: int, question: InputRequest) -> None:
        try:
            await call.client.ask(question)
        except McpError as refusal:
            codes[index] = refusal.code
        else:
            codes[index] = None

    async with anyio.create_task_group() as tasks:
        for index, question in enumerate(questions):
            tasks.start_soon(ask, index, question)
    return [codes[index] for index in sorted(codes)]


async def test_an_upstream_may_not_ask_without_end() -> None:
    async def script(call: Call) -> Outcome:
        return complete(answers=await refusals(call, roots(), roots(), roots()))

    async with bridged(script, max_questions=2) as world:
        paused = await world.asked()
        assert len(paused.requests) == 2
        assert answers_in(await world.retry(paused, answers_to(paused))) == [None, None, INVALID_REQUEST]


async def test_a_retry_that_declares_less_is_asked_no_more_than_that() -> None:
    async def script(call: Call) -> Outcome:
        return complete(answers=await refusals(call, sampling(), roots()))

    async with bridged(script) as world:
        paused = await world.asked()
        answers = {key: SAMPLED for key, request in paused.requests.items() if request == sampling()}
        outcome = await world.retry(paused, answers, capabilities={"sampling": {}})
    assert answers_in(outcome) == [None, METHOD_NOT_FOUND]


async def test_a_question_that_the_upstream_takes_back_is_not_asked() -> None:
    async def script(call: Call) -> Outcome:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call.client.ask, elicitation())
                await withdrawn.wait()
                scope.cancel()
        return complete(answers=[decoded(await call.client.ask(roots()))])

    withdrawn = anyio.Event()
    async with bridged(script) as world:
        paused = await world.asked()
        withdrawn.set()
        await quiet()
        again = await world.retry(paused)
        assert isinstance(again, InputRequired)
        assert list(pausing(again).requests.values()) == [roots()]
        assert answers_in(await world.retry(again, answers_to(again))) == [ROOTS]


async def test_a_question_that_outlives_its_call_is_refused() -> None:
    late: list[int | None] = []

    async def script(call: Call) -> Outcome:
        tasks.start_soon(ask_on, call)
        await call.client.ask(elicitation())
        return complete(answers=[])

    async def ask_on(call: Call) -> None:
        late.extend(await refusals(call, roots()))
        late.extend(await refusals(call, roots()))

    async with bridged(script) as world, anyio.create_task_group() as tasks:
        tasks.cancel_scope.deadline = anyio.current_time() + GUARD
        paused = await world.asked()
        answers = {key: ACCEPTED for key, request in paused.requests.items() if request == elicitation()}
        assert len(paused.requests) == 2
        assert answers_in(await world.retry(paused, answers)) == []
    assert late == [INVALID_REQUEST, INVALID_REQUEST]


async def test_a_client_that_hangs_up_ends_the_call() -> None:
    tool = Tool(asking_forever)
    async with bridged(tool) as world, anyio.create_task_group() as tasks:
        tasks.start_soon(_call, world)
        await quiet()
        assert tool.in_flight == 1
        tasks.cancel_scope.cancel()
    assert (tool.cancelled, tool.in_flight) == (1, 0)


async def asking_forever(call: Call) -> Outcome:
    await anyio.sleep_forever()
    raise AssertionError


async def _call(world: World) -> None:
    await world.call()


class Driven:
    """A parked call that a test drives through its states, as its upstream, its client and its keeper would."""

    def __init__(self, tasks: TaskGroup) -> None:
        self.call = ParkedCall(self.request(), BridgeSettings())
        self._tasks = tasks
        self._scopes = list[anyio.CancelScope]()
        self._referral = ExitStack()
        self._acts = {
            ParkedCallEvent.ASKED: self.ask,
            ParkedCallEvent.SETTLED: self.withdraw,
            ParkedCallEvent.GATHERED: self.park,
            ParkedCallEvent.REFERRED: self.refer,
            ParkedCallEvent.DECIDED: self.decide,
            ParkedCallEvent.HELD: self.let_go,
            ParkedCallEvent.RETRIED: self.retry,
            ParkedCallEvent.ENDED: self.end,
            ParkedCallEvent.ABANDONED: self.abandon,
        }

    def request(self) -> Call:
        return Call(row_of("tools/call"), {}, Caller(ANONYMOUS, LATEST, {"roots": raw({})}), FakeClient())

    async def ask(self) -> None:
        scope = anyio.CancelScope()
        self._scopes.append(scope)

        async def asking() -> None:
            with scope, suppress(McpError):
                await self.call.ask(roots())

        self._tasks.start_soon(asking)
        await quiet()

    async def withdraw(self) -> None:
        """The upstream takes back all its questions."""
        for scope in self._scopes:
            scope.cancel()
        await quiet()

    async def park(self) -> None:
        self.call.park()

    async def refer(self) -> None:
        self._referral.enter_context(self.call.referred())

    async def decide(self) -> None:
        self._referral.close()

    async def let_go(self) -> None:
        self.call.park(ParkedCallEvent.HELD)

    async def retry(self) -> None:
        self.call.resume(self.request())

    async def end(self) -> None:
        self.call.end(complete())

    async def abandon(self) -> None:
        self.call.abandon()

    async def does(self, event: ParkedCallEvent) -> ParkedCallState:
        await self._acts[event]()
        return self.call.state


WAYS_TO: dict[ParkedCallState, tuple[ParkedCallEvent, ...]] = {
    ParkedCallState.RUNNING: (),
    ParkedCallState.ASKING: (ParkedCallEvent.ASKED,),
    ParkedCallState.REFERRED: (ParkedCallEvent.REFERRED,),
    ParkedCallState.PARKED: (ParkedCallEvent.ASKED, ParkedCallEvent.GATHERED),
    ParkedCallState.FINISHED: (ParkedCallEvent.ASKED, ParkedCallEvent.GATHERED, ParkedCallEvent.ENDED),
    ParkedCallState.CANCELLED: (ParkedCallEvent.ASKED, ParkedCallEvent.ABANDONED),
    ParkedCallState.OVER: (ParkedCallEvent.ENDED,),
}
"""The events that bring a call that begins into each state."""
WAYS_OF_A_REFERRED_CALL: dict[ParkedCallState, tuple[ParkedCallEvent, ...]] = {
    ParkedCallState.REFERRED: (ParkedCallEvent.REFERRED,),
    ParkedCallState.PARKED: (ParkedCallEvent.REFERRED, ParkedCallEvent.HELD),
    ParkedCallState.CANCELLED: (ParkedCallEvent.REFERRED, ParkedCallEvent.ABANDONED),
}
"""The same for one that another person has still to decide."""


@pytest.mark.parametrize(
    ("state", "event"),
    [(state, event) for state, row in TRANSITIONS.items() for event in row],
    ids=lambda each: each.name,
)
async def test_a_call_takes_every_edge_of_its_table(state: ParkedCallState, event: ParkedCallEvent) -> None:
    async with anyio.create_task_group() as tasks:
        driven = Driven(tasks)
        ways = WAYS_OF_A_REFERRED_CALL if event is ParkedCallEvent.DECIDED else WAYS_TO
        for before in ways[state]:
            await driven.does(before)
        assert driven.call.state is state
        assert await driven.does(event) is TRANSITIONS[state][event]
        tasks.cancel_scope.cancel()


async def test_a_retry_of_a_call_that_waits_for_a_decision_waits_for_it_too() -> None:
    async with anyio.create_task_group() as tasks:
        driven = Driven(tasks)
        for before in (ParkedCallEvent.REFERRED, ParkedCallEvent.HELD, ParkedCallEvent.RETRIED):
            await driven.does(before)
        assert driven.call.state is ParkedCallState.REFERRED
        assert driven.call.round == 1
        assert await driven.does(ParkedCallEvent.DECIDED) is ParkedCallState.RUNNING


async def test_a_client_is_present_from_its_retry_on() -> None:
    async with anyio.create_task_group() as tasks:
        driven, seen = Driven(tasks), anyio.Event()

        async def wait() -> None:
            await driven.call.present()
            seen.set()

        await driven.call.present()
        for before in (ParkedCallEvent.REFERRED, ParkedCallEvent.HELD):
            await driven.does(before)
        tasks.start_soon(wait)
        await quiet()
        assert not seen.is_set()
        await driven.does(ParkedCallEvent.RETRIED)
        with anyio.fail_after(GUARD):
            await seen.wait()


@pytest.mark.parametrize("state", [ParkedCallState.FINISHED, ParkedCallState.CANCELLED, ParkedCallState.OVER])
async def test_a_call_that_ended_asks_nothing_more(state: ParkedCallState) -> None:
    async with anyio.create_task_group() as tasks:
        driven = Driven(tasks)
        for before in WAYS_TO[state]:
            await driven.does(before)
        with pytest.raises(McpError, match="is over"):
            await driven.call.ask(roots())
        assert driven.call.state is state
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("state", [state for state in ParkedCallState if state is not ParkedCallState.OVER])
async def test_a_call_has_the_first_outcome_that_it_was_given(state: ParkedCallState) -> None:
    async with anyio.create_task_group() as tasks:
        driven = Driven(tasks)
        for before in WAYS_TO[state]:
            await driven.does(before)
        outcome = complete(first=1)
        if state is ParkedCallState.FINISHED:
            assert driven.call.outcome == complete()
        else:
            driven.call.end(outcome)
            driven.call.end(complete(second=2))
            assert driven.call.outcome == outcome
        tasks.cancel_scope.cancel()


async def test_a_call_that_is_over_cannot_be_parked_resumed_or_abandoned() -> None:
    async with anyio.create_task_group() as tasks:
        driven = Driven(tasks)
        await driven.end()
        await driven.abandon()
        assert driven.call.state is ParkedCallState.OVER
        with pytest.raises(KeyError):
            driven.call.park()
        with pytest.raises(KeyError):
            driven.call.resume(driven.request())
