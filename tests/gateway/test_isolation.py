"""Two principals in front of one gateway: what is private to the one never reaches the other, however reads meet (R34).

Through the whole way of a call. The server says to whom each of its answers was given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import pytest

from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.clients import ResourceUpdated
from mcproxy.call.identity import Caller, Principal
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import row_of
from tests.fakes.upstream import (
    FakeClient,
    FakeListener,
    FakeUpstream,
    House,
    complete,
    decoded,
    error,
    failed,
    house,
    quiet,
)
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

URI = "file:///x"
READ = "resources/read"
SUBSCRIBE = "resources/subscribe"
HOUR = 3_600_000


def library(**hints: object) -> FakeUpstream:
    """Its answers say who asked."""
    upstream = FakeUpstream("a", resources={"subscribe": True})
    upstream.answers[SUBSCRIBE] = lambda call: complete()
    say(upstream, **hints)
    return upstream


def say(upstream: FakeUpstream, **hints: object) -> None:
    def answer(call: Call) -> Outcome:
        text = f"for {call.caller.principal.name}"
        return complete(contents=[{"uri": URI, "text": text}], **{"ttlMs": HOUR, **hints})

    upstream.answers[READ] = answer


async def read(h: House, name: str, endpoint: str = "a") -> Outcome:
    caller = Caller(Principal(name), LATEST, endpoint=endpoint)
    with anyio.fail_after(GUARD):
        return await h.gateway.handler(Call(row_of(READ), {"uri": raw(URI)}, caller, FakeClient()))


async def text(h: House, name: str) -> str:
    return said(await read(h, name))


def said(outcome: Outcome | None) -> str:
    assert isinstance(outcome, Complete), outcome
    contents = decoded(outcome)["contents"]
    assert isinstance(contents, list)
    return str(contents[0]["text"])


@dataclass
class Pending:
    """A read that is on its way."""

    h: House
    name: str
    outcome: Outcome | None = None

    async def run(self) -> None:
        self.outcome = await read(self.h, self.name)


@asynccontextmanager
async def held(h: House, *names: str) -> AsyncIterator[list[Pending]]:
    """Reads of these principals, as far as they come without an answer; at the end all are answered."""
    pending = [Pending(h, name) for name in names]
    h["a"].gate.shut()
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            for each in pending:
                tasks.start_soon(each.run)
                await anyio.wait_all_tasks_blocked()
            yield pending
            h["a"].gate.open()


SCOPES = [{}, {"cacheScope": "private"}, {"cacheScope": "Public"}, {"cacheScope": None}]


@pytest.mark.parametrize("hints", SCOPES)
async def test_r34_what_is_not_public_is_read_by_each_principal_and_kept_for_it(hints: dict[str, object]) -> None:
    async with house(library(**hints)) as h:
        await h.ready()
        for _ in range(2):
            for name in ("alice", "bob"):
                assert await text(h, name) == f"for {name}"
        assert h["a"].count(READ) == 2


@pytest.mark.parametrize("hints", SCOPES)
async def test_r34_what_is_not_public_is_not_shared_by_reads_that_meet_either(hints: dict[str, object]) -> None:
    async with house(library(**hints)) as h:
        await h.ready()
        async with held(h, "alice", "bob", "alice") as pending:
            assert h["a"].gate.held == 2
        assert [said(each.outcome) for each in pending] == ["for alice", "for bob", "for alice"]


async def test_r34_what_is_public_is_read_once_for_all() -> None:
    async with house(library(cacheScope="public")) as h:
        await h.ready()
        assert [await text(h, name) for name in ("alice", "bob", "carol")] == ["for alice"] * 3
        assert h["a"].count(READ) == 1


async def test_r37_reads_of_what_was_public_meet_and_are_one() -> None:
    async with house(library(cacheScope="public")) as h:
        await h.ready()
        await text(h, "alice")
        h["a"].announce(ResourceUpdated(URI))
        async with held(h, "bob", "alice", "carol") as pending:
            assert h["a"].gate.held == 1
        assert [said(each.outcome) for each in pending] == ["for bob"] * 3


async def test_r34_what_turns_private_while_others_wait_for_it_is_the_leaders_alone() -> None:
    async with house(library(cacheScope="public")) as h:
        await h.ready()
        await text(h, "alice")
        h["a"].announce(ResourceUpdated(URI))
        async with held(h, "bob", "alice") as pending:
            say(h["a"], cacheScope="private")
        assert [said(each.outcome) for each in pending] == ["for bob", "for alice"]
        assert [await text(h, name) for name in ("alice", "bob", "carol")] == ["for alice", "for bob", "for carol"]


async def test_r34_a_refusal_of_one_is_not_given_to_another_waiter() -> None:
    async with house(library(cacheScope="public")) as h:
        await h.ready()
        await text(h, "alice")
        h["a"].announce(ResourceUpdated(URI))
        async with held(h, "bob", "alice") as pending:
            h["a"].answers[READ] = lambda call: failed(f"not for {call.caller.principal.name}")
        assert [error(each.outcome).message for each in pending if each.outcome] == ["not for bob", "not for alice"]


async def test_r34_an_upstream_that_serves_everybody_alike_is_shared_where_that_is_configured() -> None:
    async with house(library(), options={"a": {"cache": {"shared": True}}}) as h:
        await h.ready()
        async with held(h, "alice", "bob") as pending:
            assert h["a"].gate.held == 1
        assert [said(each.outcome) for each in pending] == ["for alice"] * 2
        assert await text(h, "carol") == "for alice"


async def test_r34_what_is_watched_for_the_cache_is_no_more_public_than_before() -> None:
    async with house(library(ttlMs=0), options={"a": {"cache": {"coherent": True}}}) as h:
        await h.ready()
        await text(h, "alice")
        await h["a"].called(SUBSCRIBE)
        await quiet()
        for _ in range(3):
            for name in ("alice", "bob"):
                assert await text(h, name) == f"for {name}"
        assert h["a"].count(READ) == 3


async def test_r34_an_update_is_read_anew_by_each() -> None:
    async with house(library()) as h:
        await h.ready()
        listeners = [FakeListener(Caller(Principal(name), LATEST, endpoint="a")) for name in ("alice", "bob")]
        for listener in listeners:
            h.gateway.join(listener)
            assert decoded(await h.call(SUBSCRIBE, listener=listener, uri=URI)) == {}
        for name in ("alice", "bob"):
            await text(h, name)
        h["a"].announce(ResourceUpdated(URI))
        for listener in listeners:
            await listener.hears(ResourceUpdated(URI))
        for name in ("alice", "bob"):
            assert await text(h, name) == f"for {name}"
        assert h["a"].count(READ) == 4
