"""The log messages of a call over a connection that the call itself makes: the server has the level before it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from mcproxy.app import App, running
from mcproxy.call.calls import Call, Complete
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import LOG_MESSAGE, row_of
from mcproxy.settings import Settings
from tests.fakes.upstream import FakeClient, FakeListener, decoded
from tests.system.running import ROOT
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def logger(**options: object) -> AsyncIterator[App]:
    child = {"command": sys.executable, "args": ["-m", "tests.fakes.servers.logger"], "cwd": str(ROOT)}
    settings = {"upstreams": [{"name": "log", "prefix": "log", **child, **options}]}
    with anyio.fail_after(GUARD):
        async with running(Settings.model_validate(settings)) as app:
            await app.gateway.settled()
            yield app


async def call(app: App, name: str, caller: Caller, listener: FakeListener | None = None) -> list[str]:
    """The levels of the messages that the call's client was sent."""
    client = FakeClient()
    await app.gateway.handler(Call(row_of("tools/call"), {"name": raw(f"log__{name}")}, caller, client, listener))
    return [str(decoded(Complete(params))["level"]) for method, params in client.notified if method == LOG_MESSAGE]


async def joined(app: App, session: str, level: str) -> FakeListener:
    """A client of a new session that has set a level."""
    listener = FakeListener(Caller(ANONYMOUS, LATEST_HANDSHAKE, session=session))
    app.gateway.join(listener)
    params = {"level": raw(level)}
    await app.gateway.handler(Call(row_of("logging/setLevel"), params, listener.caller, FakeClient(), listener))
    return listener


async def test_first_call_of_a_session_is_logged_at_its_level() -> None:
    async with logger(connection="session") as app:
        for session, level in (("one", "debug"), ("two", "error")):
            listener = await joined(app, session, level)
            assert await call(app, "work", listener.caller, listener) == [level]


async def test_first_call_after_a_restart_is_logged_at_the_level_of_the_session() -> None:
    async with logger() as app:
        listener = await joined(app, "one", "debug")
        for _ in range(3):
            assert await call(app, "work", listener.caller, listener) == ["debug"]
            await call(app, "die", listener.caller, listener)


async def test_first_call_after_a_restart_is_logged_at_the_level_of_a_stateless_call() -> None:
    async with logger() as app:
        caller = Caller(ANONYMOUS, LATEST, log_level="debug")
        for _ in range(3):
            assert await call(app, "work", caller) == ["debug"]
            await call(app, "die", caller)
