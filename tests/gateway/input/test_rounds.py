"""The twin of `mcproxy.gateway.input.rounds`: a client of the handshake eras, an upstream that asks by results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import anyio
import pytest
from msgspec import Raw

from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError
from mcproxy.protocol.eras import LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, Params, parse_text, raw
from mcproxy.protocol.methods import PROGRESS
from tests.fakes.bridging import (
    ACCEPTED,
    ALL,
    ROOTS,
    SAMPLED,
    Tool,
    World,
    bridged,
    elicitation,
    required,
    roots,
    sampling,
)
from tests.fakes.upstream import FakeClient, complete, decoded, error, quiet

pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class Person(FakeClient):
    """A client that answers each kind of question, or fails it."""

    answers: dict[str, object] = field(
        default_factory=lambda: {
            "elicitation/create": ACCEPTED,
            "sampling/createMessage": SAMPLED,
            "roots/list": ROOTS,
        }
    )

    async def ask(self, request: InputRequest) -> Raw:
        self.asked.append(request)
        answer = self.answers[request.method]
        if isinstance(answer, McpError):
            raise answer
        return raw(answer)


async def legacy(world: World, client: FakeClient | None = None, **call: object) -> Outcome:
    return await world.call(version=LATEST_HANDSHAKE, client=client or Person(), **call)  # type: ignore[arg-type]  # the options of `call`


def scripted(*outcomes: Outcome) -> Tool:
    """Answers one after the other; the last again and again."""
    tool: Tool

    async def script(call: Call) -> Outcome:
        return outcomes[min(tool.runs, len(outcomes)) - 1]

    tool = Tool(script)
    return tool


def given(call: Call) -> tuple[object, str | None]:
    """The answers and the state that a retry carries."""
    answers = call.params.get("inputResponses")
    return (None if answers is None else decoded(answers)), parse_text(call.params.get("requestState", b""))


async def test_the_client_is_asked_and_the_call_made_again_with_its_answers() -> None:
    tool = scripted(required({"who": elicitation()}, "s1"), required({"where": roots()}, "s2"), complete(done=True))
    client = Person()
    async with bridged(tool) as world:
        outcome = await legacy(world, client, arguments={"a": 1})
    assert decoded(outcome) == {"done": True}
    assert client.asked == [elicitation(), roots()]
    assert [given(call) for call in tool.calls] == [(None, None), ({"who": ACCEPTED}, "s1"), ({"where": ROOTS}, "s2")]
    assert all(decoded(call.params["arguments"]) == {"a": 1} for call in tool.calls)


async def test_what_one_result_asks_is_asked_at_once() -> None:
    waiting = 0

    class Slow(Person):
        async def ask(self, request: InputRequest) -> Raw:
            nonlocal waiting
            waiting += 1
            while waiting < 3:
                await quiet()
            return await super().ask(request)

    tool = scripted(required({"a": elicitation(), "b": sampling(), "c": roots()}), complete())
    async with bridged(tool) as world:
        await legacy(world, Slow())
    assert given(tool.calls[1]) == ({"a": ACCEPTED, "b": SAMPLED, "c": ROOTS}, None)


async def test_no_state_is_returned_that_was_not_given_last() -> None:
    tool = scripted(required({"a": roots()}, "s1"), required({"b": roots()}), complete())
    async with bridged(tool) as world:
        await legacy(world)
    assert given(tool.calls[2]) == ({"b": ROOTS}, None)


async def test_an_upstream_that_sheds_load_is_called_again_later() -> None:
    tool = scripted(required({}, "s1"), required({}, "s2"), complete(done=True))
    outcomes: list[Outcome] = []
    async with bridged(tool) as world, anyio.create_task_group() as tasks:

        async def call() -> None:
            outcomes.append(await legacy(world))

        tasks.start_soon(call)
        for _ in range(2):
            await quiet()
            assert outcomes == []
            await world.time.go_by(1)
    assert decoded(outcomes[0]) == {"done": True}
    assert [given(call) for call in tool.calls] == [(None, None), (None, "s1"), (None, "s2")]
    assert world.time.naps == [0.1, 0.2]


async def test_rounds_without_input_back_off_to_a_quarter_of_a_second_and_afresh_after_input() -> None:
    shed = required({}, "s")
    tool = scripted(shed, shed, shed, shed, required({"a": roots()}, "s"), shed, shed, complete(done=True))
    async with bridged(tool) as world, anyio.create_task_group() as tasks:
        tasks.start_soon(legacy, world)
        for _ in range(10):
            await world.time.go_by(1)
    assert len(tool.calls) == 8
    assert world.time.naps == [0.1, 0.2, 0.25, 0.25, 0.1, 0.2]


async def test_an_upstream_that_is_never_content_fails_the_call() -> None:
    tool = scripted(required({"a": roots()}, "s"))
    async with bridged(tool, max_rounds=3) as world:
        failure = error(await legacy(world))
    assert failure.code == INTERNAL_ERROR
    assert "after 3 rounds" in failure.message
    assert tool.runs == 4


async def test_a_person_who_gives_no_answer_has_cancelled() -> None:
    client = Person()
    client.answers["elicitation/create"] = McpError(INTERNAL_ERROR, "no answer within 600 s")
    tool = scripted(required({"a": elicitation(), "b": roots()}), complete())
    async with bridged(tool) as world:
        await legacy(world, client)
    assert given(tool.calls[1]) == ({"a": {"action": "cancel"}, "b": ROOTS}, None)


async def test_a_client_that_cannot_answer_fails_the_call_with_its_own_error() -> None:
    client = Person()
    client.answers["sampling/createMessage"] = McpError(-1, "User rejected sampling request")
    tool = scripted(required({"a": sampling(), "b": elicitation()}), complete())
    async with bridged(tool) as world:
        failure = error(await legacy(world, client))
    assert (failure.code, failure.message) == (-1, "User rejected sampling request")
    assert tool.runs == 1


async def test_the_other_questions_end_with_the_call() -> None:
    ended = anyio.Event()

    class Torn(Person):
        async def ask(self, request: InputRequest) -> Raw:
            if request.method in self.answers:
                return await super().ask(request)
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()
            raise AssertionError

    client = Torn(answers={"sampling/createMessage": McpError(-1, "no")})
    async with bridged(scripted(required({"a": roots(), "b": sampling()}))) as world:
        assert error(await legacy(world, client)).code == -1
    assert ended.is_set()


async def test_what_the_client_did_not_declare_is_not_asked() -> None:
    client = Person()
    tool = scripted(required({"a": elicitation(mode="url", url="https://example.com")}), complete())
    async with bridged(tool) as world:
        failure = error(await legacy(world, client, capabilities={"elicitation": {}}))
    assert failure.code == INVALID_REQUEST
    assert "elicitation.url" in failure.message
    assert client.asked == []
    assert tool.runs == 1


async def test_an_elicitation_by_url_gets_the_id_that_older_clients_need() -> None:
    client = Person()
    url = elicitation(mode="url", url="https://example.com")
    tool = scripted(required({"a": url, "b": elicitation(mode="url", url="x", elicitationId="its own")}), complete())
    async with bridged(tool) as world:
        await legacy(world, client, capabilities=ALL)
    ids = [parse_text(request.params["elicitationId"]) for request in client.asked]
    assert "its own" in ids
    assert len({*ids}) == 2
    assert all(ids)


async def test_progress_goes_to_the_client_in_every_round() -> None:
    client = Person()
    outcomes: Iterator[Outcome] = iter([required({"a": roots()}), complete()])
    step = 0

    async def script(call: Call) -> Outcome:
        nonlocal step
        step += 1
        params: Params = {"progress": raw(step)}
        call.client.notify(PROGRESS, params)
        return next(outcomes)

    async with bridged(Tool(script)) as world:
        assert isinstance(await legacy(world, client), Complete)
    assert client.notified == [(PROGRESS, {"progress": raw(1)}), (PROGRESS, {"progress": raw(2)})]
