"""Upstreams that ask, clients of either era in front of them, and a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import anyio
import msgspec
from prometheus_client import CollectorRegistry

from mcproxy import settings
from mcproxy.call.calls import Call, Complete, Handler, InputRequired, Outcome
from mcproxy.call.clients import Client, InputRequest
from mcproxy.call.identity import AGGREGATE, Caller
from mcproxy.call.identity import Principal as CallPrincipal
from mcproxy.gateway.input.bridge import InputBridge
from mcproxy.gateway.pipeline import contained, stack
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import Params, first_level, raw
from mcproxy.protocol.methods import row_of
from mcproxy.sealing import Sealer
from mcproxy.telemetry.metrics import Metrics
from tests.fakes.upstream import FakeClient, complete, decoded, quiet
from tests.timeouts import GUARD

Script = Callable[[Call], Awaitable[Outcome]]

ALL: Final[Mapping[str, object]] = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
"""Every capability that a client can declare."""

ACCEPTED: Final[dict[str, object]] = {"action": "accept", "content": {"name": "Ada"}}
SAMPLED: Final[dict[str, object]] = {"role": "assistant", "content": {"type": "text", "text": "Paris"}, "model": "m"}
ROOTS: Final[dict[str, object]] = {"roots": [{"uri": "file:///home"}]}


def elicitation(message: str = "Who are you?", **params: object) -> InputRequest:
    members = {"message": message, "requestedSchema": {"type": "object", "properties": {}}, **params}
    return InputRequest("elicitation/create", {key: raw(value) for key, value in members.items()})


def sampling(**params: object) -> InputRequest:
    members = {"messages": [], "maxTokens": 10, **params}
    return InputRequest("sampling/createMessage", {key: raw(value) for key, value in members.items()})


def roots() -> InputRequest:
    return InputRequest("roots/list", {})


def required(requests: Mapping[str, InputRequest], state: str | None = None, **members: object) -> InputRequired:
    """What a stateless upstream answers to get input."""
    shown = {key: {"method": request.method, "params": request.params} for key, request in requests.items()}
    result = {"resultType": "input_required", "inputRequests": shown, **members}
    if state is not None:
        result["requestState"] = state
    return InputRequired(dict(requests), state, first_level(result))


def asking(*questions: InputRequest) -> Script:
    """Asks one thing after the other; its result holds all the answers."""

    async def script(call: Call) -> Outcome:
        return complete(answers=[await call.client.ask(question) for question in questions])

    return script


def asking_together(*questions: InputRequest) -> Script:
    async def script(call: Call) -> Outcome:
        answers: dict[int, object] = {}

        async def ask(index: int, question: InputRequest) -> None:
            answers[index] = await call.client.ask(question)

        async with anyio.create_task_group() as tasks:
            for index, question in enumerate(questions):
                tasks.start_soon(ask, index, question)
        return complete(answers=[answers[index] for index in sorted(answers)])

    return script


def pausing(required: InputRequired) -> InputRequired:
    """Checks that an answer of ours is what its own members say, and returns it."""
    result = decoded(required)
    shown = {key: {"method": r.method, "params": decoded(r.params)} for key, r in required.requests.items()}
    assert result == {"resultType": "input_required", "inputRequests": shown, "requestState": required.state}
    return required


@dataclass
class Tool:
    """A handler whose every run is a side effect. Whatever happens to it is counted."""

    script: Script
    runs: int = 0
    in_flight: int = 0
    cancelled: int = 0
    calls: list[Call] = field(default_factory=list)

    async def __call__(self, call: Call) -> Outcome:
        self.runs += 1
        self.in_flight += 1
        self.calls.append(call)
        try:
            return await self.script(call)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1


class Time:
    """Passes when the test says so; what is shorter than a blink passes by itself."""

    BLINK = 0.05

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.naps: list[float] = []
        self._sleepers: list[tuple[float, anyio.Event]] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if seconds <= self.BLINK:
            await quiet()
            return
        self.naps.append(seconds)
        woken = anyio.Event()
        self._sleepers.append((self.now + seconds, woken))
        await woken.wait()

    async def go_by(self, seconds: float) -> None:
        await quiet()
        self.now += seconds
        for sleeper in [sleeper for sleeper in self._sleepers if sleeper[0] <= self.now]:
            self._sleepers.remove(sleeper)
            sleeper[1].set()
        await quiet()


@dataclass
class FakeResolver:
    """A `CallResolver` that says the same of every call, and allows it."""

    upstream: str = "up"
    is_stateless: bool = False
    is_referred: bool = False

    async def owner(self, call: Call) -> str:
        return self.upstream

    def check_allowed(self, call: Call) -> None:
        return

    def asks_by_results(self, call: Call) -> bool:
        return self.is_stateless

    def may_be_referred(self, call: Call) -> bool:
        return self.is_referred


@dataclass
class World:
    """A bridge in front of one handler."""

    bridge: InputBridge
    handler: Handler
    time: Time
    metrics: Metrics
    limits: settings.BridgeSettings
    resolver: FakeResolver

    @property
    def parked(self) -> int:
        return int(self.metrics.registry.get_sample_value("mcproxy_parked_calls") or 0)

    async def call(
        self,
        *,
        method: str = "tools/call",
        name: str = "greet",
        arguments: object = None,
        version: str = LATEST,
        principal: str = "ada",
        roles: frozenset[str] = frozenset({"dev"}),
        endpoint: str = AGGREGATE,
        capabilities: Mapping[str, object] = ALL,
        client: Client | None = None,
        **params: object,
    ) -> Outcome:
        declared = _raw_members(capabilities)
        caller = Caller(CallPrincipal(principal, roles), version, declared, endpoint=endpoint)
        members = _raw_members({"name": name, "arguments": {} if arguments is None else arguments, **params})
        with anyio.fail_after(GUARD):
            return await self.handler(Call(row_of(method), members, caller, client or FakeClient()))

    async def asked(self, **call: object) -> InputRequired:
        """A call that ends in a question of ours."""
        outcome = await self.call(**call)  # type: ignore[arg-type]  # the options of `call`
        assert isinstance(outcome, InputRequired), outcome
        return pausing(outcome)

    async def retry(
        self, paused: InputRequired, answers: Mapping[str, object] | None = None, **call: object
    ) -> Outcome:
        """The retry of a client that got `paused`."""
        given = {} if answers is None else {"inputResponses": answers}
        return await self.call(**{**call, **given, "requestState": paused.state})  # type: ignore[arg-type]  # as above


def answers_to(paused: InputRequired) -> dict[str, object]:
    """What a client that has all the answers gives."""
    by_method = {"elicitation/create": ACCEPTED, "sampling/createMessage": SAMPLED, "roots/list": ROOTS}
    return {key: by_method[request.method] for key, request in paused.requests.items()}


def answers_in(outcome: Outcome) -> object:
    """The answers that an asking tool got, in its order."""
    assert isinstance(outcome, Complete), outcome
    return decoded(outcome)["answers"]


@asynccontextmanager
async def bridged(handler: Handler, **limits: object) -> AsyncIterator[World]:
    """A bridge that runs in front of `handler`. `limits` are its settings."""
    time, metrics, numbers = Time(), Metrics(CollectorRegistry()), count(1)
    bounds = settings.BridgeSettings.model_validate(limits)

    resolver, sealer = FakeResolver(), Sealer(b"secret")
    bridge = InputBridge(bounds, sealer, resolver, metrics, time.clock, time.sleep, lambda: f"id-{next(numbers)}")
    world = World(bridge, stack([contained, bridge.bridged], handler), time, metrics, bounds, resolver)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bridge.run)
        await quiet()
        try:
            yield world
        finally:
            tasks.cancel_scope.cancel()


def _raw_members(members: Mapping[str, object]) -> Params:
    return {key: value if isinstance(value, msgspec.Raw) else raw(value) for key, value in members.items()}
