"""The twin of `mcproxy.gateway.input.parking`: a tool that asks runs once, whatever clients do."""

from __future__ import annotations

import gc

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.errors import Reason
from mcproxy.gateway.component import Reconfiguration
from mcproxy.gateway.input.parked_call import ParkedCall
from mcproxy.gateway.input.parking import STOPPED
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from mcproxy.settings import Settings
from tests.depth import examples
from tests.fakes.bridging import (
    ACCEPTED,
    ROOTS,
    Tool,
    World,
    answers_in,
    answers_to,
    asking,
    bridged,
    elicitation,
    roots,
)
from tests.fakes.upstream import complete, error, failed, quiet
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def refusal(outcome: Outcome) -> str:
    """The sentence by which a retry was refused."""
    refused = error(outcome)
    assert refused.code == INVALID_PARAMS
    return refused.message


async def test_a_state_is_good_for_one_retry() -> None:
    tool = Tool(asking(elicitation(), roots()))
    async with bridged(tool) as world:
        first = await world.asked()
        second = await world.retry(first, answers_to(first))
        assert isinstance(second, InputRequired)
        assert "used before" in refusal(await world.retry(first, answers_to(first)))
        assert answers_in(await world.retry(second, answers_to(second))) == [ACCEPTED, ROOTS]
        for used in (first, second):
            assert "used before" in refusal(await world.retry(used, answers_to(used)))
    assert tool.runs == 1


@pytest.mark.parametrize(
    "change",
    [{"principal": "eve"}, {"endpoint": "up"}, {"name": "other"}, {"arguments": {"a": 1}}, {"method": "prompts/get"}],
)
async def test_a_state_is_good_for_its_own_request_alone(change: dict[str, object]) -> None:
    tool = Tool(asking(roots()))
    async with bridged(tool) as world:
        paused = await world.asked()
        assert "another request" in refusal(await world.retry(paused, answers_to(paused), **change))
        assert tool.in_flight == 1
        assert answers_in(await world.retry(paused, answers_to(paused))) == [ROOTS]
    assert tool.runs == 1


async def test_r39_a_lesser_request_of_the_same_caller_resumes_nothing() -> None:
    tool = Tool(asking(roots(), roots()))
    async with bridged(tool) as world:
        first = await world.asked()
        assert "other rights" in refusal(await world.retry(first, answers_to(first), roles=frozenset()))
        second = await world.retry(first, answers_to(first), roles=frozenset({"dev", "ops"}))
        assert isinstance(second, InputRequired)
        assert "other rights" in refusal(await world.retry(second, answers_to(second)))
        assert answers_in(await world.retry(second, answers_to(second), roles=frozenset({"dev", "ops"})))
    assert tool.runs == 1


async def test_a_state_that_was_altered_or_made_up_wakes_nothing() -> None:
    tool = Tool(asking(roots()))
    async with bridged(tool) as world:
        paused = await world.asked()
        assert paused.state is not None
        for state in (paused.state[:-4], paused.state[4:], "made up", ""):
            assert "not one" in refusal(await world.call(requestState=state, inputResponses=answers_to(paused)))
        assert tool.in_flight == 1
    assert tool.runs == 1


async def test_of_two_retries_at_once_one_wins() -> None:
    tool = Tool(asking(roots()))
    outcomes: list[Outcome] = []
    async with bridged(tool) as world:
        paused = await world.asked()

        async def retry() -> None:
            outcomes.append(await world.retry(paused, answers_to(paused)))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(retry)
    refused = [outcome for outcome in outcomes if outcome is not outcomes[-1]]
    assert answers_in(outcomes[-1]) == [ROOTS]
    assert all("used before" in refusal(outcome) for outcome in refused)
    assert (len(refused), tool.runs) == (4, 1)


async def test_a_state_of_a_gateway_that_is_gone_is_refused() -> None:
    async with bridged(asking(roots())) as before:
        paused = await before.asked()
    tool = Tool(asking(roots()))
    async with bridged(tool) as after:
        assert "its call is over" in refusal(await after.retry(paused, answers_to(paused)))
    assert tool.runs == 0


# Time.


async def test_a_call_whose_client_does_not_return_is_cancelled_upstream() -> None:
    tool = Tool(asking(roots()))
    async with bridged(tool, park_ttl=60) as world:
        paused = await world.asked()
        await world.time.go_by(59.9)
        assert (tool.cancelled, world.parked) == (0, 1)
        await world.time.go_by(0.1)
        assert (tool.cancelled, tool.in_flight, world.parked) == (1, 0, 0)
        assert "expired" in refusal(await world.retry(paused, answers_to(paused)))
        assert world.metrics.registry.get_sample_value("mcproxy_parked_ends_total", {"how": "expired"}) == 1
    assert tool.runs == 1


async def test_a_shorter_time_of_a_reload_is_that_of_calls_parked_from_then_on() -> None:
    tool = Tool(asking(roots()))
    async with bridged(tool, park_ttl=600) as world:
        await world.asked()
        await quiet()
        proxy = {"bridge": {"park_ttl": 60}}
        world.bridge.reconfigure(Reconfiguration(Settings.model_validate({"proxy": proxy}), {}))
        await world.asked()
        await world.time.go_by(60)
        assert (tool.cancelled, world.parked) == (1, 1)
        await world.time.go_by(540)
        assert (tool.cancelled, world.parked) == (2, 0)


async def test_each_round_has_its_own_time() -> None:
    tool = Tool(asking(roots(), elicitation()))
    async with bridged(tool, park_ttl=60) as world:
        first = await world.asked()
        await world.time.go_by(40)
        second = await world.retry(first, answers_to(first))
        assert isinstance(second, InputRequired)
        await world.time.go_by(40)
        assert answers_in(await world.retry(second, answers_to(second))) == [ROOTS, ACCEPTED]
        assert world.metrics.registry.get_sample_value("mcproxy_parked_ends_total", {"how": "answered"}) == 2
    assert tool.cancelled == 0


async def test_time_does_not_run_out_for_a_call_whose_client_is_there() -> None:
    working, outcomes = anyio.Event(), list[Outcome]()

    async def script(call: Call) -> Outcome:
        await call.client.ask(roots())
        await working.wait()
        return complete(answers=[])

    async with bridged(script, park_ttl=60) as world, anyio.create_task_group() as tasks:
        paused = await world.asked()

        async def retry() -> None:
            outcomes.append(await world.retry(paused, answers_to(paused)))

        tasks.start_soon(retry)
        await quiet()
        await world.time.go_by(1000)
        working.set()
    assert answers_in(outcomes[0]) == []


# The other side's end.


async def test_the_client_learns_at_its_retry_why_the_upstream_ended_its_call() -> None:
    lost = failed("upstream 'up': the child exited with status 1", reason=Reason.UNAVAILABLE)
    dying = anyio.Event()

    async def script(call: Call) -> Outcome:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.client.ask, roots())
            await dying.wait()
            tasks.cancel_scope.cancel()
        return lost

    async with bridged(script) as world:
        paused = await world.asked()
        dying.set()
        await quiet()
        assert world.parked == 1
        assert await world.retry(paused, answers_to(paused)) is lost
        assert world.parked == 0
        assert "its call is over" in refusal(await world.retry(paused, answers_to(paused)))


async def test_an_outcome_that_is_never_fetched_is_forgotten() -> None:
    ending = anyio.Event()

    async def script(call: Call) -> Outcome:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.client.ask, roots())
            await ending.wait()
            tasks.cancel_scope.cancel()
        return complete()

    async with bridged(script, park_ttl=60) as world:
        await world.asked()
        ending.set()
        await world.time.go_by(59)
        assert world.parked == 1
        await world.time.go_by(1)
        assert world.parked == 0


async def test_a_gateway_that_stops_says_so_to_waiting_callers() -> None:
    tool = Tool(asking(roots()))
    async with bridged(tool) as world:
        paused = await world.asked()
    assert (tool.cancelled, tool.in_flight) == (1, 0)
    outcome = error(await world.retry(paused, answers_to(paused)))
    assert outcome.code == INTERNAL_ERROR
    assert "stopped" in outcome.message


@pytest.mark.parametrize("turns", range(4))
async def test_a_gateway_that_stops_says_so_to_calls_under_way_however_young(turns: int) -> None:
    outcomes: list[Outcome] = []

    async def script(call: Call) -> Outcome:
        await anyio.sleep_forever()
        raise AssertionError

    async with anyio.create_task_group() as tasks:
        async with bridged(Tool(script)) as world:

            async def call() -> None:
                outcomes.append(await world.call())

            tasks.start_soon(call)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
        with anyio.fail_after(GUARD):
            await quiet()
            tasks.cancel_scope.cancel()
    assert outcomes == [STOPPED]


async def test_r25_a_client_that_hangs_up_on_its_retry_ends_the_call_and_frees_its_place() -> None:
    async def script(call: Call) -> Outcome:
        await call.client.ask(roots())
        await anyio.sleep_forever()
        raise AssertionError

    tool = Tool(script)
    async with bridged(tool) as world:
        paused = await world.asked()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_retry, world, paused)
            await quiet()
            assert (tool.in_flight, world.parked) == (1, 1)
            tasks.cancel_scope.cancel()
        await quiet()
        assert (tool.cancelled, tool.in_flight, world.parked) == (1, 0, 0)
        assert "its call is over" in refusal(await world.retry(paused, answers_to(paused)))


async def _retry(world: World, paused: InputRequired) -> None:
    await world.retry(paused, answers_to(paused))


# How many.


@pytest.mark.parametrize(
    ("limits", "newcomer"),
    [
        ({"max_parked": 2}, "eve"),
        ({"max_parked_per_principal": 2}, "ada"),
    ],
)
async def test_where_there_is_no_room_the_newcomer_alone_fails(limits: dict[str, object], newcomer: str) -> None:
    tool = Tool(asking(roots(), elicitation()))
    async with bridged(tool, **limits) as world:
        parked = [await world.asked(), await world.asked()]
        refused = error(await world.call(principal=newcomer))
        await quiet()
        assert "busy" in refused.message
        assert all(limit in refused.message for limit in limits)
        assert (tool.cancelled, tool.in_flight, world.parked) == (1, 2, 2)
        for paused in parked:
            again = await world.retry(paused, answers_to(paused))
            assert isinstance(again, InputRequired), "who is parked keeps its place from round to round"
            assert answers_in(await world.retry(again, answers_to(again))) == [ROOTS, ACCEPTED]
        assert isinstance(await world.call(principal=newcomer), InputRequired)


async def test_one_principals_calls_take_no_place_of_anothers() -> None:
    async with bridged(asking(roots()), max_parked_per_principal=1) as world:
        await world.asked(principal="ada")
        assert error(await world.call(principal="ada"))
        await world.asked(principal="eve")
        assert world.parked == 2


async def test_a_thousand_parked_calls_half_of_them_abandoned_leave_nothing() -> None:
    tool = Tool(asking(elicitation(), roots()))
    async with bridged(tool, max_parked=1000, max_parked_per_principal=1000, park_ttl=60) as world:
        parked: list[InputRequired] = []

        async def call() -> None:
            parked.append(await world.asked())

        async def finish(paused: InputRequired) -> None:
            again = await world.retry(paused, answers_to(paused))
            assert isinstance(again, InputRequired)
            assert answers_in(await world.retry(again, answers_to(again))) == [ACCEPTED, ROOTS]

        async with anyio.create_task_group() as tasks:
            for _ in range(1000):
                tasks.start_soon(call)
        assert (world.parked, tool.in_flight) == (1000, 1000)
        async with anyio.create_task_group() as tasks:
            for paused in parked[::2]:
                tasks.start_soon(finish, paused)
        assert (world.parked, tool.in_flight) == (500, 500)
        await world.time.go_by(60)
        assert (world.parked, tool.in_flight) == (0, 0)
        assert (tool.runs, tool.cancelled) == (1000, 500)
        tool.calls.clear()
        gc.collect()
        assert not [thing for thing in gc.get_objects() if isinstance(thing, ParkedCall)]


# Anything, in any order.


@settings(max_examples=examples(60))
@given(st.data())
def test_a_tool_that_asks_runs_exactly_once_whatever_is_replayed_expired_or_raced_at_it(data: st.DataObject) -> None:
    anyio.run(_do_anything, data)


async def _do_anything(data: st.DataObject) -> None:
    tool = Tool(asking(elicitation(), roots()))
    fresh, done = 0, 0
    async with bridged(tool, park_ttl=60, max_parked=4) as world:
        states: list[InputRequired] = []

        async def send(paused: InputRequired, answered: bool, principal: str) -> None:
            nonlocal done
            answers = answers_to(paused) if answered else {}
            outcome = await world.retry(paused, answers, principal=principal)
            match outcome:
                case InputRequired():
                    states.append(outcome)
                case Complete():
                    done += 1
                    assert answers_in(outcome) == [ACCEPTED, ROOTS]
                case Failed():
                    assert refusal(outcome)

        for _ in range(data.draw(st.integers(1, 15))):
            match data.draw(st.sampled_from(["call", "retry", "race", "wait", "steal", "forget"])):
                case "call":
                    fresh += 1
                    outcome = await world.call()
                    if isinstance(outcome, InputRequired):
                        states.append(outcome)
                case "retry" if states:
                    await send(data.draw(st.sampled_from(states)), True, "ada")
                case "race" if states:
                    raced = data.draw(st.sampled_from(states))
                    async with anyio.create_task_group() as tasks:
                        for _ in range(3):
                            tasks.start_soon(send, raced, True, "ada")
                case "steal" if states:
                    before = tool.in_flight
                    await send(data.draw(st.sampled_from(states)), True, "eve")
                    assert tool.in_flight == before
                case "forget" if states:
                    await send(data.draw(st.sampled_from(states)), False, "ada")
                case "wait":
                    await world.time.go_by(data.draw(st.sampled_from([1, 30, 60])))
                case _:
                    pass
            await quiet()
            assert tool.runs == fresh
            assert tool.in_flight == world.parked <= 4
        await world.time.go_by(60)
        assert (tool.in_flight, world.parked) == (0, 0)
        assert tool.runs == fresh == done + tool.cancelled
