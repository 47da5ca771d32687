"""Clients of the stateless era and real servers of the handshake era: what these ask gets there and back."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from prometheus_client import CollectorRegistry

from mcproxy.app import App, running
from mcproxy.call.calls import Call, InputRequired, Outcome
from mcproxy.call.clients import Client
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import row_of
from mcproxy.settings import Settings
from mcproxy.telemetry.metrics import Metrics
from tests.fakes.servers import sdk
from tests.fakes.upstream import FakeClient, decoded
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def in_front_of_a_server(**proxy: object) -> AsyncIterator[App]:
    spec = {"name": "sdk", "prefix": "sdk", "command": sys.executable, "args": [str(Path(sdk.__file__)), "stdio"]}
    settings = Settings.model_validate({"proxy": proxy, "upstreams": [{**spec, "era": "legacy"}]})
    with anyio.fail_after(GUARD):
        async with running(settings, metrics=Metrics(CollectorRegistry())) as app:
            await app.settled()
            yield app


async def call(app: App, name: str, client: Client | None = None, **params: object) -> Outcome:
    caller = Caller(ANONYMOUS, LATEST, {"elicitation": raw({})})
    members = {"name": raw(f"sdk__{name}"), **{key: raw(value) for key, value in params.items()}}
    return await app.handler(Call(row_of("tools/call"), members, caller, client or FakeClient()))


async def test_r58_a_servers_elicitation_is_answered_by_a_retry() -> None:
    async with in_front_of_a_server() as app:
        paused = await call(app, "greet")
        assert isinstance(paused, InputRequired)
        [(key, request)] = paused.requests.items()
        assert decoded(request.params)["message"] == "Who are you?"
        answers = {key: {"action": "accept", "content": {"name": "Ada"}}}
        outcome = await call(app, "greet", inputResponses=answers, requestState=paused.state)
    assert decoded(outcome)["content"] == [{"type": "text", "text": "hello Ada"}]


async def test_many_clients_are_each_greeted_by_their_own_name() -> None:
    async with in_front_of_a_server() as app:
        greetings: list[object] = []

        async def greet(name: str) -> None:
            paused = await call(app, "greet")
            assert isinstance(paused, InputRequired)
            answers = {key: {"action": "accept", "content": {"name": name}} for key in paused.requests}
            outcome = await call(app, "greet", inputResponses=answers, requestState=paused.state)
            greetings.append((name, decoded(outcome)["structuredContent"]))

        for name in ("Ada", "Grace", "Mary"):
            await greet(name)
    assert greetings == [(name, {"result": f"hello {name}"}) for name in ("Ada", "Grace", "Mary")]
